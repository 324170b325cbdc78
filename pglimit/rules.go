package pglimit

import (
	"context"
	"errors"

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
	}
	known := l.rules.Load()
	if known == nil {
		r.Rule = notRead
		return
	}
	if r.Rule, _ = known.of(r.Limiter).Find(r.Key, r.Limit != Limit{}); r.Rule != nil && r.Rule.Action == Enforce {
		r.Limit = r.Rule.Limit
	}
}

// useRules decides by this set from now on. What was denied before may be granted under a rule that is back.
func (l *Limiter) useRules(set *limits.Set) {
	known := &rules{set: set, name: l.config.Name, own: set.Of(l.config.Name), unfit: make(map[*LimitRule]error)}
	for r := range set.All() {
		if r.Action != Enforce && r.Action != Observe || r.Unreadable != "" {
			continue
		}
		if err := checkLimit(l.strategy, r.Limit); err != nil {
			known.unfit[r] = err
		}
	}
	if l.rules.Swap(known) != nil {
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
		case r.Rule.Action == Deny:
			for j := range u.Decisions { // the other buckets of a group may have the tokens
				u.Decisions[j] = Decision{Allowed: true, At: l.config.Limits.now(), Source: FromRule}
			}
			u.Decisions[i] = l.config.Limits.denial(r.Rule)
			return true
		case !u.IsGroup() && r.Rule.Action != Enforce:
			u.Decisions[i] = l.config.Limits.grant(r)
			return true
		}
	}
	return false
}

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

// observed are the requests under rules that are only observed, and where their answers belong.
type observed struct {
	limiter *Limiter
	units   []*unit // to be asked
	answers []beside
}

type beside struct {
	unit     *unit
	decision *Decision // of the request itself
}

// observed makes a request under the rule that is only observed for each request that takes tokens by itself. Nil: there
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
		for i := range u.Requests {
			r := u.Requests[i]
			_, rule := known.of(r.Limiter).Find(r.Key, false)
			if rule == nil || r.Tokens == 0 || rule.Unreadable != "" || known.unfit[rule] != nil || u.Decisions[i].Source == FromRule || u.Decisions[i].Source == FromAdjust || u.Decisions[i].Source == FromNewKeys {
				continue
			}
			if o == nil {
				o = &observed{limiter: l}
			}
			own := &unit{Requests: []Request{{Limiter: r.Limiter + observedSuffix, Key: r.Key, Limit: rule.Limit, Tokens: r.Tokens, Unit: r.Unit, Rule: rule}}, Decisions: make([]Decision, 1)}
			o.answers = append(o.answers, beside{own, &u.Decisions[i]})
			if r.Unit <= rule.Limit.Burst {
				o.units = append(o.units, own)
			} else { // it could never be granted
				own.Decisions[0] = l.config.Limits.denial(rule)
			}
		}
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
		if a.unit.Err != nil || a.unit.Decisions[0].Source == FromNewKeys {
			continue
		}
		r, d := &a.unit.Requests[0], a.unit.Decisions[0]
		d.Limiter, d.Key, d.Limit, d.Rule = r.Limiter, r.Key, r.Limit, r.Rule
		a.decision.Observed = &d
		o.limiter.counters.ruled[Observe].Add(1)
		if !d.Allowed {
			o.limiter.counters.observedDenied.Add(1)
		}
	}
}
