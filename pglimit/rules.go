package pglimit

import (
	"context"
	"fmt"
	"time"

	"github.com/pglimit/ratelimit/pglimit/internal/limits"
)

// notRead is the rule of requests that came before the table was read for the first time.
var notRead = &LimitRule{}

// foreverDenied is the RetryAfter of a key that a rule denies without an end.
const foreverDenied = time.Hour

// ready waits until the rules are known, within the time limit, and returns the Limiter's own limit.
func (l *Limiter) ready(ctx context.Context) Limit {
	if l.config.Limits != nil {
		timeout := l.timeout
		if l.parent != nil && timeout == NoTimeout {
			timeout = defaultTimeout
		}
		_ = l.config.Limits.await(ctx, timeout) // else applyRule notes it
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
	set := l.config.Limits.set.Load()
	if set == nil {
		r.Rule = notRead
		return
	}
	if r.Rule, _ = set.Find(r.Limiter, r.Key, r.Limit != Limit{}); r.Rule != nil && r.Rule.Action == Enforce {
		r.Limit = r.Rule.Limit
	}
}

// checkRules notes which rules the strategy cannot keep.
func (l *Limiter) checkRules(set *limits.Set) {
	var unfit map[*LimitRule]error
	for r := range set.All() {
		if r.Action != Enforce && r.Action != Observe {
			continue
		}
		if err := checkLimit(l.strategy, r.Limit); err != nil {
			if unfit == nil {
				unfit = make(map[*LimitRule]error)
			}
			unfit[r] = fmt.Errorf("pglimit: row %d of pglimit.limits: %w", r.ID, err)
		}
	}
	if unfit == nil {
		l.unfitRules.Store(nil)
	} else {
		l.unfitRules.Store(&unfit)
	}
}

// unfit says why the strategy cannot keep the limit of a rule, or is nil.
func (l *Limiter) unfit(r *LimitRule) error {
	if unfit := l.unfitRules.Load(); unfit != nil {
		return (*unfit)[r]
	}
	return nil
}

// unruled answers the units of which a rule says that they are granted or denied, and returns the others.
func (l *Limiter) unruled(units []*unit) []*unit {
	if l.config.Limits == nil {
		return units
	}
	var rest []*unit
	for i, u := range units {
		switch ruled := l.ruled(u); {
		case ruled && rest == nil:
			rest = append(make([]*unit, 0, len(units)), units[:i]...)
		case !ruled && rest != nil:
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

func (l *Limits) now() time.Time { return l.set.Load().Now() }

func (l *Limits) denial(r *LimitRule) Decision {
	d := Decision{At: l.now(), Source: FromRule, RetryAfter: foreverDenied}
	if !r.Expires.IsZero() {
		d.RetryAfter = max(r.Expires.Sub(d.At), 0) + l.every
	}
	d.ResetAfter = d.RetryAfter
	return d
}

func (l *Limits) grant(r *Request) Decision {
	return Decision{Allowed: true, Granted: r.Tokens, Remaining: r.Limit.Burst, At: l.now(), Source: FromRule}
}

// isFree says that such a decision charged nothing, so that there is nothing to give back.
func isFree(s Source) bool { return s == FromFallback || s == FromRule }

// decideGroup is decide for a group. What a rule grants is not taken from its bucket.
func (l *Limiter) decideGroup(ctx context.Context, group []Request) *unit {
	all := &unit{Requests: group, Decisions: make([]Decision, len(group))}
	var asked []int
	for i := range group {
		if r := group[i].Rule; r == nil || r == notRead || r.Action == Enforce || r.Action == Deny {
			asked = append(asked, i)
		}
	}
	if len(asked) == len(group) {
		l.decide(ctx, []*unit{all})
		return all
	}
	granted := true
	if len(asked) > 0 {
		u := &unit{Decisions: make([]Decision, len(asked))}
		for _, i := range asked {
			u.Requests = append(u.Requests, group[i])
		}
		l.decide(ctx, []*unit{u})
		if u.Err != nil {
			return u
		}
		for k, i := range asked {
			all.Decisions[i] = u.Decisions[k]
			granted = granted && u.Decisions[k].Granted > 0
		}
	}
	free := new(unit)
	for i := range group {
		if all.Decisions[i].Limiter == "" { // not told
			free.Requests = append(free.Requests, group[i])
		}
	}
	free.Decisions = make([]Decision, len(free.Requests))
	l.observe(ctx, free)
	for i := range group {
		r, d := &group[i], &all.Decisions[i]
		if d.Limiter != "" {
			continue
		}
		*d = l.config.Limits.grant(r)
		d.Observed, free.Decisions = free.Decisions[0].Observed, free.Decisions[1:]
		if !granted {
			d.Granted = 0
		}
		if len(asked) > 0 {
			d.Limiter, d.Key, d.Limit, d.Rule = r.Limiter, r.Key, r.Limit, r.Rule
			l.counters.ruled[r.Rule.Action].Add(1)
			if l.config.OnDecision != nil {
				l.config.OnDecision(ctx, *r, *d, nil)
			}
		}
	}
	if len(asked) == 0 {
		l.tell(ctx, all)
	}
	return all
}

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

// observed makes a request under the rule that is only observed for each request that takes tokens. Nil: there is none.
func (l *Limiter) observed(units []*unit) *observed {
	if l.config.Limits == nil {
		return nil
	}
	set := l.config.Limits.set.Load()
	if set == nil || !set.Observes {
		return nil
	}
	var o *observed
	for _, u := range units {
		for i := range u.Requests {
			r := u.Requests[i]
			_, rule := set.Find(r.Limiter, r.Key, false)
			if rule == nil || r.Tokens == 0 || l.unfit(rule) != nil {
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

// observe asks about the rule that is only observed, for a unit that is decided by itself.
func (l *Limiter) observe(ctx context.Context, u *unit) {
	if o := l.observed([]*unit{u}); o != nil {
		l.ask(ctx, l.unknown(o.units))
		o.note()
	}
}

// note tells the answers, and counts them. What is not known is no answer.
func (o *observed) note() {
	if o == nil {
		return
	}
	for _, a := range o.answers {
		if a.unit.Err != nil {
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
