package pglimit

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/internal/claims"
	"github.com/pglimit/ratelimit/pglimit/internal/limits"
	"github.com/pglimit/ratelimit/pglimit/internal/top"
	"github.com/pglimit/ratelimit/pglimit/internal/wait"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// claim is what goes through the stages: one request or a group, the decisions, or an error.
type claim = claims.Claim

// single is a claim of one request, to be used again.
type single struct {
	claim
	request  [1]rate.Request
	rule     [1]*LimitRule
	decision [1]Decision
	all      [1]*claim
}

var singles = sync.Pool{New: func() any { return new(single) }}

// decideOne completes the request and decides it. With ahead, r is the complete one afterwards.
func (l *Limiter) decideOne(ctx context.Context, r *rate.Request, ahead ahead) (Decision, error) {
	s := singles.Get().(*single)
	own := l.ready(ctx)
	s.request[0], s.rule[0], s.decision[0] = *r, nil, Decision{}
	s.claim = claim{Requests: s.request[:], Decisions: s.decision[:]}
	if l.rules != nil {
		s.Rules = s.rule[:]
	}
	s.all[0] = &s.claim
	err := l.complete(&s.claim, 0, own, ahead)
	if err == nil {
		l.decide(ctx, s.all[:], nil)
		err = s.Err
	}
	d := s.decision[0]
	if ahead != nil { // who reserves needs it, and nobody else
		*r = s.request[0]
	}
	s.request[0] = rate.Request{} // or its strings would stay in memory
	singles.Put(s)
	return d, err
}

// newClaim is a claim of these requests, which are not complete yet.
func (l *Limiter) newClaim(requests ...Request) *claim {
	c := claims.New(asked(requests)...)
	if l.rules != nil {
		c.Rules = make([]*LimitRule, len(requests))
	}
	return c
}

// decide is the road of every claim. Each line is a stage, which answers some of the claims and passes on the others.
// If no stage in this process knows the answer, Postgres is asked. A claim that waits for its turn is alone.
func (l *Limiter) decide(ctx context.Context, all []*claim, waits *turn) {
	unknown := waits.queue(ctx, l.local(all))
	var observed *limits.Observed
	if waits == nil || !waits.again {
		observed = l.observe(all)
	}
	live := len(unknown)
	if observed != nil {
		unknown = append(slices.Clone(unknown), l.local(observed.Claims)...)
	}
	l.ask(ctx, unknown, live)
	observed.Note(l.counters.observed)
	for _, c := range all {
		l.tell(ctx, c)
	}
}

// local answers what is known in this process: by rules, by Config.Adjust, out of leases, from the memory of denials.
func (l *Limiter) local(all []*claim) []*claim {
	for _, answer := range l.answers {
		all = claims.Unanswered(all, answer)
	}
	return l.unknown(all)
}

// observe makes claims under the rules that are only observed. Nil: there are none.
func (l *Limiter) observe(all []*claim) *limits.Observed {
	if l.parent != nil {
		return nil
	}
	return l.rules.Observe(all)
}

// unknown answers the claims that this process knows, and returns the others. What follows an unknown
// request for its bucket is decided behind it.
func (l *Limiter) unknown(all []*claim) (unknown []*claim) {
	switch {
	case len(all) == 0 || len(all) == 1 && l.known(all[0]):
		return nil
	case len(all) == 1:
		return all
	}
	asked := make(map[rate.Bucket]bool)
	for _, c := range all {
		if asked[c.Requests[0].Bucket()] || !l.known(c) {
			unknown = append(unknown, c)
			asked[c.Requests[0].Bucket()] = true
		}
	}
	return unknown
}

// known answers the claim if there is a lease with enough tokens, or the memory has it that a bucket
// does not have enough.
func (l *Limiter) known(c *claim) bool {
	if c.Requests[0].ID != "" { // it may have been granted before
		return false
	}
	for i := range c.Requests {
		d, spent, left := l.leases.Spend(&c.Requests[i])
		if spent || left { // larger than the rest of the lease: skip the memory, which does not know about leases
			c.Decisions[i] = d
			return spent
		}
	}
	return l.recall(c.Requests, c.Decisions)
}

// recall answers the requests of a claim if one of the buckets is known to lack tokens. The others may
// have them.
func (l *Limiter) recall(requests []rate.Request, decisions []Decision) (known bool) {
	for i := range requests {
		d, lacks := l.denials.Recall(&requests[i])
		if !lacks {
			continue
		}
		if !known && len(requests) > 1 {
			for j := range decisions {
				decisions[j] = Decision{Allowed: true, At: d.At, Source: FromMemory}
			}
		}
		decisions[i], known = d, true
	}
	return known
}

// ask Postgres about the claims, within one time limit. So many of them count as callers.
func (l *Limiter) ask(parent context.Context, all []*claim, callers int) {
	if len(all) == 0 {
		return
	}
	err := l.asCaller(parent, callers, func(ctx context.Context) error {
		l.obtain(ctx, l.newKeys.Admit(ctx, all))
		for _, c := range all {
			c.Err = l.late(parent, ctx, c.Err)
		}
		return nil
	})
	if err != nil { // nothing was sent
		for _, c := range all {
			c.Fail(err)
		}
	}
}

// asCaller asks Postgres as that many of the callers who wait for it, within the time limit.
func (l *Limiter) asCaller(parent context.Context, callers int, ask func(context.Context) error) error {
	if err := l.waiting.Enter(callers); err != nil {
		return err
	}
	defer l.waiting.Leave(callers)
	ctx, cancel := l.timed(parent)
	defer cancel()
	err := l.circuit.Admit(ctx)
	if err == nil {
		err = ask(ctx)
	}
	return l.late(parent, ctx, err)
}

// timed is the context with the time limit of a decision.
func (l *Limiter) timed(ctx context.Context) (context.Context, context.CancelFunc) {
	if l.timeout == NoTimeout {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, l.timeout)
}

// outlasting is ctx for a call that must not be lost when its caller leaves: it goes on after ctx has ended, for as
// long as a decision may take, or for a second.
func (l *Limiter) outlasting(ctx context.Context) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(max(wait.SettleTime, l.timeout), cancel) })
	return longer, func() { stop(); cancel() }
}

// late returns err as a timeoutError if the time limit ended the call. err alone may not show
// that: a pool may be set up to cancel a query on the server, and then err is the server's.
func (l *Limiter) late(parent, ctx context.Context, err error) error {
	switch {
	case err == nil, l.timeout == NoTimeout, parent.Err() != nil, CauseOf(err).isSetUp():
		return err
	case errors.Is(errors.Join(err, ctx.Err()), context.DeadlineExceeded):
		return &timeoutError{l.timeout, postgres.BusyConns(l.session), err}
	}
	return err
}

// tell completes and counts what the caller gets: the decisions, or after an error what OnError
// makes of it.
func (l *Limiter) tell(ctx context.Context, c *claim) {
	switch {
	case c.Err != nil:
		l.rules.Blame(c)
		l.fallback(ctx, c)
	case c.Decisions[0].Source == FromNewKeys && l.config.NewKeys.OnRefused != nil:
		if l.answerBy(ctx, c, l.config.NewKeys.OnRefused, ErrTooManyNewKeys, FromNewKeys); c.Err != nil {
			l.counters.denied[FromNewKeys].Add(1) // an error of the user's, for a denial
		}
	}
	for i := range c.Requests {
		r, d := &c.Requests[i], &c.Decisions[i]
		if c.Err == nil {
			d.Limiter, d.Key = r.Limiter, r.Key
			if rule := c.Rule(i); rule != nil && rule != limits.NotRead {
				d.Rule = rule
				l.counters.ruled[rule.Action].Add(1)
			}
			if r.ID == "" || d.Source == FromFallback || d.Limit == (Limit{}) { // else the ID was granted its tokens under an earlier limit
				d.Limit = r.Limit
			}
			if d.Granted > 0 && l.bounds(r, d) {
				l.counters.grantedTokens.Add(d.Granted)
			}
			l.top.Count(r, d)
		}
	}
	switch {
	case c.Err != nil:
	case c.IsGroup():
		l.count(c, &Decision{Allowed: c.Decisions[0].Granted > 0, Source: c.Decisions[0].Source})
	default:
		l.count(c, &c.Decisions[0])
	}
	if l.config.OnDecision == nil {
		return
	}
	for i := range c.Requests {
		l.config.OnDecision(ctx, told(&c.Requests[i]), c.Decisions[i], c.Err)
	}
}

// count an answer: a group is one, of its first limiter.
func (l *Limiter) count(c *claim, d *Decision) {
	l.counters.tell(d)
	if l.top == nil {
		return
	}
	kind := top.Denied
	if d.Allowed {
		kind = top.Granted
	}
	l.top.Told(c.Requests[0].Limiter, kind)
}

// bounds says whether the Limiter's own limit bounds how many such tokens are granted, of each key
// and in any span of time: so an exporter can show that it was kept. The grant of a transaction may
// be rolled back, one with an ID may be told twice, one ahead of its time belongs to a later span, and
// that of a group is another's as well.
func (l *Limiter) bounds(r *rate.Request, d *Decision) bool {
	return l.parent == nil && !d.Source.IsFree() && d.Delay == 0 && r.ID == "" && r.Group == 0 &&
		r.Limiter == l.config.Name && (r.Limit == l.Limit() || l.share != nil && r.Limit == l.share.Of(l.Limit()))
}
