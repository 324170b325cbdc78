package pglimit

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/pglimit/ratelimit/pglimit/internal/limits"
)

// notRead is the rule of requests that came before the table was read for the first time.
var notRead = &LimitRule{}

// ready waits until the rules are known, within the time limit, and returns the Limiter's own limit.
func (l *Limiter) ready(ctx context.Context) Limit {
	if of := l.config.Limits; of != nil && of.set.Load() == nil {
		timeout := l.timeout
		if timeout == NoTimeout {
			timeout = defaultTimeout
		}
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		if l.waiting.Enter(1) == nil {
			_ = of.Await(ctx) // else applyRule notes it
			l.waiting.Leave(1)
		}
	}
	return l.Limit()
}

// applyRule notes the rule that holds for the request, and takes its limit.
func (l *Limiter) applyRule(r *Request) {
	r.Rule = nil
	if l.config.Limits == nil {
		return
	}
	if r.Limiter == "" {
		r.Limiter = l.config.Name
	} else if r.Limiter != l.config.Name && !l.foreign.Load() {
		l.foreign.Store(true) // before the rules are looked up: see useRules
	}
	known := l.rules.Load()
	if known == nil {
		r.Rule = notRead
		return
	}
	if r.Rule, _ = known.find(r.Limiter, r.Key, r.Limit != Limit{}); r.Rule != nil && r.Rule.Action == Enforce {
		r.Limit = r.Rule.Limit
	}
}

// useRules decides by this set from now on. What was denied before may be granted under a rule that is back. So what is
// remembered is forgotten, unless nothing has changed for the Limiter and it was never asked for the bucket of another.
func (l *Limiter) useRules(set *limits.Set) {
	name := l.config.Name
	before := l.rules.Swap(&rules{set: set, name: name, own: set.Of(name)})
	if before != nil && (set.Differ(name, before.set) || l.foreign.Load()) {
		l.denials.ForgetAll()
	}
}

// unruled answers the units of which a rule says that they are granted or denied, and returns the others.
func (l *Limiter) unruled(units []*unit) []*unit {
	if l.config.Limits == nil {
		return units
	}
	return unanswered(units, l.ruled)
}

// unanswered returns the units that answer does not answer.
func unanswered(units []*unit, answer func(*unit) bool) []*unit {
	var rest []*unit
	for i, u := range units {
		switch answered := answer(u); {
		case answered && rest == nil:
			rest = append(make([]*unit, 0, len(units)), units[:i]...)
		case !answered && rest != nil:
			rest = append(rest, u)
		}
	}
	if rest == nil {
		return units
	}
	return rest
}

// ruled answers the unit if a rule grants it, or denies one of its requests.
func (l *Limiter) ruled(u *unit) bool {
	for i := range u.Requests {
		switch r := &u.Requests[i]; {
		case r.Rule == nil:
		case r.Rule == notRead:
			u.Fail(l.config.Limits.unread())
			return true
		case r.Rule.Action == Deny, hasLimit(r.Rule) && r.Unit > r.Limit.Burst: // it could never be granted
			for j := range u.Decisions { // the other buckets of a group may have the tokens
				u.Decisions[j] = Decision{Allowed: true, At: l.config.Limits.now(), Source: FromRule}
			}
			u.Decisions[i] = l.config.Limits.denial(r.Rule)
			return true
		case !u.IsGroup() && !hasLimit(r.Rule):
			u.Decisions[i] = l.config.Limits.grant(r)
			return true
		}
	}
	return false
}

func hasLimit(r *LimitRule) bool { return r.Action == Enforce || r.Action == Observe }

// blameRule says of a limit that Postgres cannot keep, such as one whose time zone has gone, which rule it is of.
func (l *Limiter) blameRule(u *unit) {
	var limit *LimitError
	if l.config.Limits == nil || !errors.As(u.Err, &limit) {
		return
	}
	for i := range u.Requests {
		if r := u.Requests[i].Rule; r != nil && r.Action == Enforce && r.Limit == limit.Limit {
			u.Fail(l.config.Limits.fails(r, u.Err))
			return
		}
	}
}

// isFree says that such a decision charged nothing, so that there is nothing to give back.
func isFree(s Source) bool { return s == FromFallback || s == FromRule || s == FromNewKeys }

// observedSuffix is behind the name of a limiter whose rule is only observed: the tokens are counted there.
const observedSuffix = " (observed)"

// checkName refuses a name whose buckets are those of another limiter's new keys, or of its rules that are only observed.
func checkName(limiter string) error {
	for _, suffix := range []string{newKeysSuffix, observedSuffix} {
		if of, is := strings.CutSuffix(limiter, suffix); is {
			return &RequestError{Field: "Limiter", Why: fmt.Sprintf("is %q: that names buckets beside those of limiter %q, so no limiter may end in %q", limiter, of, suffix)}
		}
	}
	return nil
}

// observed are the requests under rules that are only observed, and where their answers belong.
type observed struct {
	limiter *Limiter
	units   []*unit // to be asked
	answers []beside
}

type beside struct {
	unit     *unit
	index    int       // in the unit
	decision *Decision // of the request itself
}

// observed makes a request under the rule that is only observed for each request that takes tokens: one that is decided as the
// request itself would be, if that rule held. Those of a group are a group. Nil: there
// is none. What another rule or Config.Adjust grants or denies needs no round trip, and gets none; nor does a transaction of the caller's.
func (l *Limiter) observed(units []*unit) *observed {
	if l.config.Limits == nil || l.parent != nil {
		return nil
	}
	known := l.rules.Load()
	if known == nil || !known.set.Observes {
		return nil
	}
	var o *observed
	for _, u := range units {
		var own *unit
		for i := range u.Requests {
			r := u.Requests[i]
			_, rule := known.find(r.Limiter, r.Key, false)
			if rule == nil || r.Tokens == 0 || rule.Unreadable != "" || known.unfit(l.strategy, rule) != nil || u.Decisions[i].Source == FromRule || u.Decisions[i].Source == FromAdjust || u.Decisions[i].Source == FromNewKeys {
				continue
			}
			if o == nil {
				o = &observed{limiter: l}
			}
			if own == nil {
				own = new(unit)
				o.units = append(o.units, own)
			}
			r.Limiter, r.Limit, r.Rule = r.Limiter+observedSuffix, rule.Limit, rule
			if r.Ahead = min(r.Ahead, MaxWindow-r.Limit.Window()); l.strategy.Check(&r) != nil { // the end of a calendar's window is not waited for
				r.Ahead = 0
			}
			o.answers = append(o.answers, beside{own, len(own.Requests), &u.Decisions[i]})
			own.Requests, own.Decisions = append(own.Requests, r), append(own.Decisions, Decision{})
		}
	}
	if o != nil {
		o.units = l.unadjusted(l.unruled(o.units))
	}
	return o
}

// isObserved says that the unit is under a rule that is only observed.
func isObserved(u *unit) bool {
	r := u.Requests[0].Rule
	return r != nil && r.Action == Observe
}

// note tells the answers, and counts them. What is not known is no answer.
func (o *observed) note() {
	if o == nil {
		return
	}
	for _, a := range o.answers {
		r, d := &a.unit.Requests[a.index], a.unit.Decisions[a.index]
		if a.unit.Err != nil || d.Source == FromNewKeys {
			continue
		}
		d.Limiter, d.Key, d.Rule = r.Limiter, r.Key, r.Rule
		if r.ID == "" || d.Limit == (Limit{}) { // else the ID was granted its tokens under an earlier limit
			d.Limit = r.Limit
		}
		a.decision.Observed = &d
		o.limiter.counters.ruled[Observe].Add(1)
		if !d.Allowed {
			o.limiter.counters.observedDenied.Add(1)
		}
	}
}

// takenBeside is what the decision took under the rule that was only observed; nil: nothing.
func takenBeside(d *Decision) *Decision {
	if o := d.Observed; o != nil && o.Granted > 0 && !isFree(o.Source) {
		return o
	}
	return nil
}
