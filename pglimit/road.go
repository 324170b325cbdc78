package pglimit

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/pglimit/ratelimit/internal/bucket"
	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/internal/adjust"
	"github.com/pglimit/ratelimit/pglimit/internal/wait"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// single is a unit of one request, to be used again.
type single struct {
	unit
	request  [1]Request
	decision [1]Decision
	all      [1]*unit
}

var singles = sync.Pool{New: func() any { return new(single) }}

// decideOne is decide for one complete request.
func (l *Limiter) decideOne(ctx context.Context, r *Request) (Decision, error) {
	s := singles.Get().(*single)
	s.request[0], s.decision[0] = *r, Decision{}
	s.unit = unit{Requests: s.request[:], Decisions: s.decision[:]}
	s.all[0] = &s.unit
	l.decide(ctx, s.all[:])
	d, err := s.decision[0], s.Err
	s.request[0] = Request{} // or its strings would stay in memory
	singles.Put(s)
	return d, err
}

// decide is the road of every unit. Each line is a stage, which answers some of the units and passes on
// the others. If no stage in this process knows the answer, Postgres is asked.
func (l *Limiter) decide(ctx context.Context, units []*unit) {
	unknown := l.unknown(l.unadjusted(l.unruled(units)))
	observed, live := l.observed(units), len(unknown)
	if observed != nil {
		unknown = append(slices.Clone(unknown), l.unknown(observed.units)...)
	}
	l.ask(ctx, unknown, live)
	observed.note()
	for _, u := range units {
		l.tell(ctx, u)
	}
}

// unknown answers the units that this process knows, and returns the others. What follows an unknown
// request for its bucket is decided behind it.
func (l *Limiter) unknown(units []*unit) (unknown []*unit) {
	switch {
	case len(units) == 0 || len(units) == 1 && l.known(units[0]):
		return nil
	case len(units) == 1:
		return units
	}
	asked := make(map[rate.Bucket]bool)
	for _, u := range units {
		if asked[u.Requests[0].Bucket()] || !l.known(u) {
			unknown = append(unknown, u)
			asked[u.Requests[0].Bucket()] = true
		}
	}
	return unknown
}

// known answers the unit if there is a lease with enough tokens, or the memory has it that a bucket
// does not have enough.
func (l *Limiter) known(u *unit) bool {
	if u.Requests[0].ID != "" { // it may have been granted before
		return false
	}
	for i := range u.Requests {
		d, spent, left := l.leases.Spend(&u.Requests[i])
		if spent || left { // larger than the rest of the lease: skip the memory, which does not know about leases
			u.Decisions[i] = d
			return spent
		}
	}
	return l.recall(u.Requests, u.Decisions)
}

// recall answers the requests of a unit if one of the buckets is known to lack tokens. The others may
// have them.
func (l *Limiter) recall(requests []Request, decisions []Decision) (known bool) {
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

// ask Postgres about units, within one time limit. So many of them count as callers.
func (l *Limiter) ask(parent context.Context, units []*unit, callers int) {
	if len(units) == 0 {
		return
	}
	err := l.asCaller(parent, callers, func(ctx context.Context) error {
		l.obtain(ctx, l.admitted(ctx, units))
		for _, u := range units {
			u.Err = l.late(parent, ctx, u.Err)
		}
		return nil
	})
	if err != nil { // nothing was sent
		for _, u := range units {
			u.Fail(err)
		}
	}
}

// asCaller asks Postgres as that many of the callers who wait for it, within the time limit.
func (l *Limiter) asCaller(parent context.Context, units int, ask func(context.Context) error) error {
	if err := l.waiting.Enter(units); err != nil {
		return err
	}
	defer l.waiting.Leave(units)
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

// obtain takes for the units out of leases that are fetched for busy keys, or else sends them.
func (l *Limiter) obtain(ctx context.Context, units []*unit) {
	if l.leases == nil && !slices.ContainsFunc(units, isApart) {
		l.take(ctx, units)
		return
	}
	var mu sync.Mutex
	served := make(map[*unit]bool)
	room := make(chan struct{}, l.config.Combine.Lanes) // for units apart: as many connections as others use
	l.eachBucket(units, func(ofBucket []*unit) {
		for _, apart := range []bool{true, false} {
			for _, u := range ofBucket {
				if isApart(u) != apart {
					continue
				}
				done := l.fromLease(ctx, u)
				if apart && !done {
					room <- struct{}{}
					_ = l.send(ctx, false, u) // u has the error
					<-room
				} else if !done { // what follows is sent behind it
					return
				}
				mu.Lock()
				served[u] = true
				mu.Unlock()
			}
		}
	})
	var rest []*unit
	addUnspent := make(map[*unit]func(Request, Decision) Decision)
	for _, u := range units {
		if served[u] {
			continue
		}
		rest = append(rest, u)
		if r := &u.Requests[0]; r.Tokens == 0 {
			addUnspent[u] = l.leases.BeforePeek(r.Bucket())
		}
	}
	l.take(ctx, rest)
	for u, add := range addUnspent {
		if u.Err == nil {
			u.Decisions[0] = add(u.Requests[0], u.Decisions[0])
		}
	}
}

// isApart says that the unit is sent by itself: it has an ID, or its denial has to be counted.
func isApart(u *unit) bool { return u.Requests[0].ID != "" || u.Requests[0].Block != nil }

// fromLease answers the unit out of a lease that is fetched for it, if it can. What leases cannot serve
// gives this process's own back first, because it may need their tokens.
func (l *Limiter) fromLease(ctx context.Context, u *unit) (done bool) {
	if r := &u.Requests[0]; !u.IsGroup() && !isApart(u) {
		if r.Tokens > 0 {
			u.Decisions[0], done, u.Err = l.leases.Fetch(ctx, r)
		}
		return done || u.Err != nil
	}
	for i := range u.Requests {
		if err := l.leases.Drop(ctx, u.Requests[i].Bucket()); err != nil {
			u.Fail(err)
			return true
		}
	}
	return false
}

// eachBucket calls do with each bucket's units, in order; groups are by themselves. Buckets are served at
// the same time; on a connection of the caller's, in the order in which rows are locked, because in a
// transaction they stay locked.
func (l *Limiter) eachBucket(units []*unit, do func(ofBucket []*unit)) {
	if len(units) == 1 {
		do(units)
		return
	}
	compare := func(a, b *unit) int {
		r, other := &a.Requests[0], &b.Requests[0]
		return cmp.Or(cmp.Compare(r.Key, other.Key), cmp.Compare(r.Limiter, other.Limiter))
	}
	inOrder := slices.SortedStableFunc(slices.Values(units), compare)
	var work sync.WaitGroup
	for len(inOrder) > 0 {
		n := 1
		for n < len(inOrder) && compare(inOrder[0], inOrder[n]) == 0 {
			n++
		}
		ofBucket := inOrder[:n]
		inOrder = inOrder[n:]
		if l.parent != nil {
			do(ofBucket)
		} else {
			work.Go(func() { do(ofBucket) })
		}
	}
	work.Wait()
}

// take sends the units, combined with those of other callers or in calls of their own.
func (l *Limiter) take(ctx context.Context, units []*unit) {
	if len(units) > 0 && l.combiner != nil {
		l.combiner.Decide(ctx, units)
		return
	}
	for len(units) > 0 {
		n := l.agreeing(units)
		err := l.send(ctx, false, units[:n]...)
		if n > 1 && errors.Is(err, ErrNothingTaken) && l.session.Autocommits() {
			l.sendEach(ctx, units[:n])
		}
		units = units[n:]
	}
}

// agreeing is how many of the first units can be in one call: it has one limit for each bucket, and keys of one shard.
func (l *Limiter) agreeing(units []*unit) int {
	if len(units) == 1 {
		return 1
	}
	shard := 0
	if l.nodes != nil {
		shard = l.nodes.shardOf(units[0].Requests[0].Key)
	}
	limits := make(map[rate.Bucket]Limit)
	for n, u := range units {
		if l.nodes != nil && l.nodes.shardOf(u.Requests[0].Key) != shard {
			return n
		}
		for i := range u.Requests {
			r := &u.Requests[i]
			if limit, known := limits[r.Bucket()]; known && limit != r.Limit {
				return n
			}
			limits[r.Bucket()] = r.Limit
		}
	}
	return len(units)
}

// sendEach sends each unit by itself after a call that took nothing: the one to blame
// fails, and the others get their decisions. Those for held rows come last, so that the others
// do not lose their time to that wait.
func (l *Limiter) sendEach(ctx context.Context, units []*unit) {
	var last []*unit
	held := make(map[rate.Bucket]bool)
	for _, u := range units {
		bucket := u.Requests[0].Bucket()
		if !held[bucket] && errors.Is(l.send(ctx, true, u), ErrLocked) {
			held[bucket] = true
		}
		if held[bucket] { // requests for one bucket stay in order
			last = append(last, u)
		}
	}
	for _, u := range last {
		_ = l.send(ctx, false, u) // u has the error
	}
}

// send makes one call for the units. The error is also that of each.
func (l *Limiter) send(ctx context.Context, impatient bool, units ...*unit) error {
	requests := units[0].Requests
	if len(units) > 1 || impatient {
		requests = nil
		for _, u := range units {
			requests = append(requests, u.Requests...)
		}
		for i := range requests {
			requests[i].Impatient = impatient
		}
	}
	decisions, err := l.roundTrip(ctx, requests)
	for _, u := range units {
		if u.Err = err; err == nil {
			decisions = decisions[copy(u.Decisions, decisions):]
		}
	}
	return err
}

// tell completes and counts what the caller gets: the decisions, or after an error what OnError
// makes of it.
func (l *Limiter) tell(ctx context.Context, u *unit) {
	for i := range u.Requests {
		if r := &u.Requests[i]; r.Rule == notRead {
			r.Rule = nil
		}
	}
	switch {
	case u.Err != nil:
		l.blameRule(u)
		l.fallback(ctx, u)
	case u.Decisions[0].Source == FromNewKeys && l.config.NewKeys.OnRefused != nil:
		if l.answerBy(ctx, u, l.config.NewKeys.OnRefused, ErrTooManyNewKeys, FromNewKeys); u.Err != nil {
			l.counters.denied[FromNewKeys].Add(1) // an error of the user's, for a denial
		}
	}
	for i := range u.Requests {
		r, d := &u.Requests[i], &u.Decisions[i]
		if u.Err == nil {
			d.Limiter, d.Key = r.Limiter, r.Key
			if r.Rule != nil {
				d.Rule = r.Rule
				l.counters.ruled[r.Rule.Action].Add(1)
			}
			if r.ID == "" || d.Source == FromFallback || d.Limit == (Limit{}) { // else the ID was granted its tokens under an earlier limit
				d.Limit = r.Limit
			}
			if d.Granted > 0 && l.bounds(r, d) {
				l.counters.grantedTokens.Add(d.Granted)
			}
		}
	}
	switch {
	case u.Err != nil:
	case u.IsGroup():
		l.counters.tell(&Decision{Allowed: u.Decisions[0].Granted > 0, Source: u.Decisions[0].Source})
	default:
		l.counters.tell(&u.Decisions[0])
	}
	if l.config.OnDecision == nil {
		return
	}
	for i := range u.Requests {
		l.config.OnDecision(ctx, u.Requests[i], u.Decisions[i], u.Err)
	}
}

// bounds says whether the Limiter's own limit bounds how many such tokens are granted, of each key
// and in any span of time: so an exporter can show that it was kept. The grant of a transaction may
// be rolled back, one with an ID may be told twice, one ahead of its time belongs to a later span, and
// that of a group is another's as well.
func (l *Limiter) bounds(r *Request, d *Decision) bool {
	return l.parent == nil && !isFree(d.Source) && d.Delay == 0 && r.ID == "" && r.Group == 0 && r.Limiter == l.config.Name && (r.Limit == l.Limit() || l.share != nil && r.Limit == bucket.Share(l.Limit(), max(1, l.share.Percent()), adjust.Whole))
}
