package limits

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pglimit/ratelimit/pglimit/internal/claims"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Stage answers the claims of one Limiter by the rules of a [Table]. The Limiter is one of the live instances of its
// name. A nil Stage has no rules.
type Stage struct {
	table    *Table
	limiter  string
	strategy rate.Strategy
	changed  func()

	known   atomic.Pointer[known] // nil: the table was not read yet
	foreign atomic.Bool           // rules of another limiter were asked for

	id   string       // of the instance; empty: the table is not one of a database
	said atomic.Int64 // when it last said that it lives, since the table's start; 0: never
	live atomic.Int64 // instances, by the last answer; 0: this one is not counted
}

// NotRead is the rule of requests that came before the table was read for the first time.
var NotRead = &rate.LimitRule{}

// ObservedSuffix is behind the name of a limiter whose rule is only observed: the tokens are counted there.
const ObservedSuffix = " (observed)"

// forever is the RetryAfter of a key that a rule denies without an end.
const forever = time.Hour

// Enter begins to follow the table. changed is called before other rules hold that may grant what was denied before.
func (t *Table) Enter(limiter string, strategy rate.Strategy, changed func()) *Stage {
	s := &Stage{table: t, limiter: limiter, strategy: strategy, changed: changed}
	if t.session != nil {
		s.id = rand.Text()
	}
	t.enter(s)
	return s
}

// Leave ends to follow the table. If Postgres does not answer, others notice it when the instance is no longer live.
func (s *Stage) Leave(ctx context.Context) {
	if s == nil {
		return
	}
	s.table.leave(s)
	s.sayGone(ctx)
}

// known are the rules of a set, as a Limiter uses them.
type known struct {
	set     *Set
	own     *Rules   // of the Limiter's name
	checked sync.Map // by *rate.LimitRule: whether the strategy can keep it, once somebody asked
}

// use decides by this set from now on. changed is called unless nothing has changed for the Limiter and it was never
// asked for the bucket of another.
func (s *Stage) use(set *Set) {
	before := s.known.Swap(&known{set: set, own: set.Of(s.limiter)})
	if before != nil && (set.Differ(s.limiter, before.set) || s.foreign.Load()) {
		s.changed()
	}
}

// find the rules for a key: mostly they are asked for the Limiter's own.
func (s *Stage) find(in *known, limiter, key string, own bool) (live, observed *rate.LimitRule) {
	if limiter == s.limiter {
		return in.set.FindIn(in.own, key, own)
	}
	return in.set.Find(limiter, key, own)
}

// unfit is why the strategy cannot keep the rule, or nil.
func (s *Stage) unfit(in *known, r *rate.LimitRule) error {
	checked, ok := in.checked.Load(r)
	if !ok {
		err := r.Limit.Validate()
		if err == nil {
			err = s.strategy.Check(&rate.Request{Limit: r.Limit})
		}
		checked, _ = in.checked.LoadOrStore(r, &err)
	}
	return *checked.(*error)
}

// Ready says that the table was read.
func (s *Stage) Ready() bool { return s == nil || s.table.set.Load() != nil }

// Apply returns the rule that holds for the request, which names its limiter, and takes its limit. Nil: there is none.
func (s *Stage) Apply(r *rate.Request) *rate.LimitRule {
	if r.Limiter != s.limiter && !s.foreign.Load() {
		s.foreign.Store(true) // before the rules are looked up: see use
	}
	in := s.known.Load()
	if in == nil {
		return NotRead
	}
	rule, _ := s.find(in, r.Limiter, r.Key, r.Limit != rate.Limit{})
	if Enforces(rule) {
		r.Limit = rule.Limit
	}
	return rule
}

// Enforces says that there is a rule, and that it has a limit.
func Enforces(r *rate.LimitRule) bool {
	return r != nil && r != NotRead && r.Unreadable == "" && r.Action == rate.ActionEnforce
}

// Frees says that the rule grants without a limit.
func Frees(r *rate.LimitRule) bool {
	return r != nil && r != NotRead && r.Action != rate.ActionDeny && r.Action != rate.ActionEnforce
}

// Fit returns a [*rate.RuleError] if the rule cannot be read, or the strategy cannot keep it.
func (s *Stage) Fit(r *rate.LimitRule) error {
	switch {
	case r == nil:
	case r.Unreadable != "":
		return s.table.fails(r, errors.New(r.Unreadable))
	case Enforces(r):
		if err := s.unfit(s.known.Load(), r); err != nil {
			return s.table.fails(r, err)
		}
	}
	return nil
}

// Answer answers the claim if a rule grants it, or denies one of its requests.
func (s *Stage) Answer(c *claims.Claim) bool {
	for i, rule := range c.Rules {
		r := &c.Requests[i]
		switch {
		case rule == nil:
		case rule == NotRead:
			c.Fail(s.table.unread())
			return true
		case rule.Action == rate.ActionDeny, hasLimit(rule) && r.Unit > r.Limit.Burst: // it could never be granted
			for j := range c.Decisions { // the other buckets of a group may have the tokens
				c.Decisions[j] = rate.Decision{Allowed: true, At: s.table.now(), Source: rate.FromRule}
			}
			c.Decisions[i] = s.deny(rule)
			return true
		case !c.IsGroup() && !hasLimit(rule):
			c.Decisions[i] = s.Grant(r)
			return true
		}
	}
	return false
}

func hasLimit(r *rate.LimitRule) bool {
	return r.Action == rate.ActionEnforce || r.Action == rate.ActionObserve
}

func (s *Stage) deny(r *rate.LimitRule) rate.Decision {
	d := rate.Decision{At: s.table.now(), Source: rate.FromRule, RetryAfter: forever}
	if !r.Expires.IsZero() {
		d.RetryAfter = max(r.Expires.Sub(d.At), 0) + s.table.every
	}
	d.ResetAfter = d.RetryAfter
	return d
}

// Grant is the decision of a rule that has no limit.
func (s *Stage) Grant(r *rate.Request) rate.Decision {
	return rate.Decision{
		Allowed: true, Granted: r.Tokens, Remaining: r.Limit.Burst, At: s.table.now(), Source: rate.FromRule,
	}
}

// Blame says of a limit that Postgres cannot keep, such as one whose time zone has gone, which rule it is of.
func (s *Stage) Blame(c *claims.Claim) {
	var limit *rate.LimitError
	if s == nil || !errors.As(c.Err, &limit) {
		return
	}
	for i, rule := range c.Rules {
		if Enforces(rule) && c.Requests[i].Limit == limit.Limit {
			c.Fail(s.table.fails(rule, c.Err))
			return
		}
	}
}

// Observed are the claims under rules that are only observed, and where their answers belong.
type Observed struct {
	Claims  []*claims.Claim // to be asked
	answers []beside
}

type beside struct {
	claim    *claims.Claim
	index    int            // in the claim
	decision *rate.Decision // of the request itself
}

// Observe makes a request under the rule that is only observed for each request that takes tokens: one that is decided
// as the request itself would be, if that rule held. Those of a group are a group. Nil: there is none. What another
// rule or Config.Adjust grants or denies needs no round trip, and gets none.
func (s *Stage) Observe(all []*claims.Claim) *Observed {
	if s == nil {
		return nil
	}
	in := s.known.Load()
	if in == nil || !in.set.Observes {
		return nil
	}
	var o *Observed
	for _, c := range all {
		var own *claims.Claim
		for i := range c.Requests {
			r := c.Requests[i]
			_, rule := s.find(in, r.Limiter, r.Key, false)
			if rule == nil || r.Tokens == 0 || rule.Unreadable != "" || s.unfit(in, rule) != nil {
				continue
			}
			if !c.Decisions[i].Source.HasLimit() {
				continue
			}
			if o == nil {
				o = new(Observed)
			}
			if own == nil {
				own = &claims.Claim{Beside: true}
				o.Claims = append(o.Claims, own)
			}
			r.Limiter, r.Limit = r.Limiter+ObservedSuffix, rule.Limit
			r.Ahead = min(r.Ahead, rate.MaxWindow-r.Limit.Window())
			if s.strategy.Check(&r) != nil { // the end of a calendar's window is not waited for
				r.Ahead = 0
			}
			o.answers = append(o.answers, beside{own, len(own.Requests), &c.Decisions[i]})
			own.Requests, own.Rules = append(own.Requests, r), append(own.Rules, rule)
			own.Decisions = append(own.Decisions, rate.Decision{})
		}
	}
	return o
}

// Note tells the answers, and to count each of them. What is not known is no answer.
func (o *Observed) Note(count func(allowed bool)) {
	if o == nil {
		return
	}
	for _, a := range o.answers {
		r, d := &a.claim.Requests[a.index], a.claim.Decisions[a.index]
		if a.claim.Err != nil || d.Source == rate.FromNewKeys {
			continue
		}
		d.Limiter, d.Key, d.Rule = r.Limiter, r.Key, a.claim.Rule(a.index)
		if r.ID == "" || d.Limit == (rate.Limit{}) { // else the ID was granted its tokens under an earlier limit
			d.Limit = r.Limit
		}
		a.decision.Observed = &d
		count(d.Allowed)
	}
}
