package pglimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/pglimit/ratelimit/internal/bucket"
	"github.com/pglimit/ratelimit/pglimit/internal/claims"
	"github.com/pglimit/ratelimit/pglimit/internal/queue"
	"github.com/pglimit/ratelimit/pglimit/internal/wait"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// ErrWaitTooLong: the tokens come too late for a Wait, which has taken nothing, or given back what it had
// reserved. RetryAfter of the Decision that comes with it says how long it would have been.
var ErrWaitTooLong = queue.ErrTooLong

var errWaitWithoutEnd = errors.New("pglimit: a wait without end: give the context of Wait a deadline, or set Config.MaxWait")

// Wait takes one token of the key's bucket, and returns when it may be used: see [Limiter.WaitN].
func (l *Limiter) Wait(ctx context.Context, key string) (Decision, error) {
	return l.WaitN(ctx, key, 1)
}

// WaitN takes n tokens of the key's bucket, and returns when they may be used. If they are not
// there, they are reserved, in one round trip: callers of all processes are served in the order in
// which Postgres was asked. The error is nil if, and only if, they may be used.
//
// WaitN fails at once and takes nothing, with [ErrWaitTooLong], if the tokens come later than the deadline of ctx, or
// than [Config].MaxWait; one of the two must be set. (Only if the round trip uses up that time, the tokens are
// reserved and given back. Config.Timeout is for the round trip, and once more for a wait before it, while
// reservations of others are given back.) If ctx ends while it waits, or the Limiter is closed, the tokens are given
// back: later waiters of this process, for as many tokens of the key, move up, and a new caller takes the place that
// is vacant then. If nobody does, the tokens go back to the bucket, unless others are reserved behind them: by
// another process, by a Reserve, or for a waiter under another limit or for another number of tokens. That takes up
// to a second more.
//
// More tokens than a burst are a [*RequestError]. If no decision is known and OnError denies, the error satisfies
// errors.Is(err, [ErrUnavailable]). If [Config].NewKeys refuses the key, it is both ErrWaitTooLong and
// [ErrTooManyNewKeys]. The strategy must know Ahead, as TokenBucket, Upsert and WarmUp do, without Config.Block; and
// a Limiter of InTx or OnConn cannot wait, because the row would stay locked. Else the error satisfies errors.Is(err,
// [errors.ErrUnsupported]).
func (l *Limiter) WaitN(ctx context.Context, key string, n int64) (Decision, error) {
	return l.wait(ctx, Request{Key: key, Tokens: n}, l.config.MaxWait)
}

// wait for the tokens of a request, for longest at most; zero: until the deadline of ctx.
func (l *Limiter) wait(ctx context.Context, request Request, longest time.Duration) (Decision, error) {
	if err := l.canWait(&request); err != nil {
		return Decision{}, err
	}
	if request.MaxWait > 0 && l.config.MaxWait > 0 {
		longest = min(longest, l.config.MaxWait)
	}
	closed := l.queue.Enter(1)
	open := closed == nil
	if open {
		defer l.queue.Leave(1)
	}
	for began, again := time.Now(), false; ; again = true {
		own := l.ready(ctx)
		c := l.newClaim(request)
		err := l.complete(c, 0, own, func(limit Limit, rule *LimitRule) (time.Duration, error) {
			if !open {
				return 0, nil // it is told so if it is valid
			}
			if rule != nil && rule.MaxWait > 0 && (longest == 0 || rule.MaxWait < longest) {
				longest = rule.MaxWait
			}
			left := longest
			if again && longest > 0 {
				left = max(1, longest-time.Since(began))
			}
			return l.longestWait(ctx, limit, left)
		})
		if err != nil {
			return Decision{}, err
		}
		if !open {
			c.Err = closed
			l.tell(ctx, c)
			return Decision{}, c.Err
		}
		if err = l.decideInTurn(ctx, c, again); !errors.Is(err, errPaused) {
			return c.Decisions[0], err
		}
	}
}

// decideInTurn decides the claim, and waits until the tokens that are reserved for it are due. The error is nil if they
// may be used, and errPaused if the claim is to be made once more. After ErrWaitTooLong, and if a fallback denies, the decisions hold.
func (l *Limiter) decideInTurn(ctx context.Context, c *claim, again bool) error {
	waits, told := &turn{limiter: l, again: again}, false
	defer func() {
		if waits.place != nil && !told { // a hook of the user's panics
			l.queue.GiveUp(ctx, c.Requests, waits.place)
		}
	}()
	l.decideOnce(ctx, c, waits)
	told = true
	d := &c.Decisions[0]
	granted := d.Granted > 0 || d.Allowed && !c.IsGroup()
	switch {
	case waits.place != nil:
		return l.waitUntilDue(ctx, c, waits.place)
	case c.Err != nil:
		return c.Err
	case granted && queue.Delay(c.Decisions) > 0: // by the fallback
		return l.waitUntilDue(ctx, c, l.queue.Add(c.Requests, c.Decisions))
	case granted:
		return nil
	case d.Source == FromFallback:
		return fmt.Errorf("%w: so nobody can wait in turn, and OnError denied the request", ErrUnavailable)
	case d.Source == FromNewKeys:
		return fmt.Errorf("%w: %w", ErrWaitTooLong, ErrTooManyNewKeys)
	}
	late, longest := time.Duration(0), time.Duration(0)
	for i := range c.Decisions {
		late, longest = max(late, c.Decisions[i].RetryAfter), max(longest, c.Requests[i].Ahead)
	}
	return queue.TooLong(late, longest)
}

// decideOnce decides the claim. All who wait for a window ask again when it ends: few of them at a time, so that they do
// not fill the places of the others, and most are answered by the memory of denials.
func (l *Limiter) decideOnce(ctx context.Context, c *claim, waits *turn) {
	if waits.again {
		select {
		case l.again <- struct{}{}:
			defer func() { <-l.again }()
		case <-ctx.Done(): // Postgres is not asked any more
		}
	}
	l.decide(ctx, []*claim{c}, waits)
}

// turn is the stage of a caller who waits for a turn. Nil: nobody does.
type turn struct {
	limiter *Limiter
	place   *queue.Waiter // nil: there is none, or the tokens are not Postgres's
	again   bool          // it has asked before, and was observed then
}

// queue answers the claim, if it is not answered yet: it takes a vacant place, or asks Postgres for one.
func (t *turn) queue(ctx context.Context, all []*claim) []*claim {
	if t == nil || len(all) == 0 {
		return all
	}
	l, c := t.limiter, all[0]
	joining, cancel := l.timed(ctx)
	place, err := l.queue.Join(joining, c.Requests)
	err = l.late(ctx, joining, err)
	cancel()
	var decisions []Decision
	if place != nil {
		decisions = place.First
	} else if err == nil {
		place, decisions, err = l.askForPlace(ctx, c.Requests)
	}
	copy(c.Decisions, decisions)
	t.place, c.Err = place, err
	return nil
}

// askForPlace asks Postgres. Who leaves meanwhile need not wait for the answer, but it is heard: what
// was reserved is given back in its turn.
func (l *Limiter) askForPlace(ctx context.Context, requests []rate.Request) (own *queue.Waiter, decisions []Decision, err error) {
	type answer struct {
		own       *queue.Waiter
		decisions []Decision
	}
	c := claims.New(slices.Clone(requests)...)
	var caller wait.Caller[*claim, answer]
	caller.Begin(c)
	longer, cancel := l.outlasting(ctx) // or it would not be known what it took
	l.queue.Stay(1)
	go func() {
		defer l.queue.Leave(1)
		defer cancel()
		l.ask(longer, []*claim{c}, 1)
		decisions := c.Decisions
		own := l.queue.Answered(c.Requests, decisions)
		if own != nil {
			decisions = own.First
		}
		switch heard := caller.Answer(answer{own, decisions}, c.Err); {
		case heard:
		case own != nil:
			l.queue.GiveUp(longer, c.Requests, own)
		default:
			l.queue.Stats.Lost.Add(decisions[0].Granted) // of a lease
		}
	}()
	got, err := caller.Await(ctx, caller.Leave)
	return got.own, got.decisions, err
}

func (l *Limiter) canWait(r *Request) error {
	switch {
	case r.Tokens < 1:
		return tooFew(r.Tokens)
	case r.MaxWait < 0:
		return negativeWait(r.MaxWait)
	}
	if err := l.canReserve(); err != nil {
		return err
	}
	if r.Unit != 0 && r.Unit != r.Tokens || r.Ahead != 0 || r.ID != "" {
		return &RequestError{Field: "MaxWait", Why: fmt.Sprintf("is %v: only a request that takes all or nothing, without Ahead or ID, can wait", r.MaxWait)}
	}
	return l.mayWait()
}

func (l *Limiter) mayWait() error {
	if l.parent != nil {
		return fmt.Errorf("pglimit: a wait in a transaction would hold the row locked: Reserve, or Wait on the Limiter itself: %w", errors.ErrUnsupported)
	}
	return nil
}

// longestWait is how long a caller with this context, and this bound unless it is zero, may wait. The deadline is
// rounded down to a millisecond, so that the requests of callers with equal timeouts can be combined.
func (l *Limiter) longestWait(ctx context.Context, limit Limit, longest time.Duration) (time.Duration, error) {
	most := MaxWindow - limit.Window()
	deadline, ends := ctx.Deadline()
	switch {
	case ctx.Err() != nil:
		return 0, ctx.Err()
	case !ends && longest == 0:
		return 0, errWaitWithoutEnd
	}
	if ends {
		left := time.Until(deadline)
		if left <= 0 {
			return 0, context.DeadlineExceeded
		}
		most = min(most, bucket.AtLeast(left).Truncate(time.Millisecond))
	}
	if longest > 0 {
		most = min(most, longest)
	}
	return most, nil
}

// waitUntilDue waits until the tokens are due, by the database's clock, or gives them back. Then the claim has the
// decisions by its last place.
func (l *Limiter) waitUntilDue(ctx context.Context, c *claim, own *queue.Waiter) error {
	err := l.queue.Wait(ctx, own)
	if err == nil {
		for i, d := range l.queue.Done(c.Requests, own) {
			d.Rule, d.Observed = c.Decisions[i].Rule, c.Decisions[i].Observed
			c.Decisions[i] = d
		}
		return l.behindPauses(ctx, c)
	}
	l.queue.GiveUp(ctx, c.Requests, own)
	var refunds []Refund // as what the others behind it reserved, it is lost then
	for i := range c.Decisions {
		if beside := takenBeside(&c.Decisions[i]); beside != nil {
			r := c.Requests[i]
			r.Limiter, r.Limit, r.Group = beside.Limiter, beside.Limit, 0
			refunds = append(refunds, refundOf(r, *beside, beside.Granted))
		}
	}
	_ = l.refund(ctx, refunds)
	if !errors.Is(err, ErrWaitTooLong) {
		c.Fail(err)
		return err
	}
	for i := range c.Decisions {
		d := &c.Decisions[i]
		d.Allowed, d.Granted, d.RetryAfter, d.Delay = c.IsGroup() && d.Delay == 0, 0, d.Delay, 0
	}
	return err
}

// Reservation is what [Limiter.Reserve] returns: tokens that may be used after Delay, as in
// golang.org/x/time/rate.
type Reservation struct {
	limiter  *Limiter
	request  rate.Request
	decision Decision
	due      time.Time // by this process's clock
	over     atomic.Bool
}

// Reserve takes one token of the key's bucket, if need be before it is there: see
// [Limiter.ReserveN].
func (l *Limiter) Reserve(ctx context.Context, key string) (*Reservation, error) {
	return l.ReserveN(ctx, key, 1)
}

// ReserveN takes n tokens of the key's bucket, which may be used after the Reservation's Delay. Nobody else gets
// them. If they come back later than [Config].MaxAhead from now, nothing is taken and the Reservation is not OK. More
// tokens than a burst are a [*RequestError]. The strategy must know Ahead, as TokenBucket, Upsert and WarmUp do,
// without Config.Block; else the error satisfies errors.Is(err, [errors.ErrUnsupported]). If OnError granted them,
// the Reservation is OK, and Cancel has nothing to give back.
func (l *Limiter) ReserveN(ctx context.Context, key string, n int64) (*Reservation, error) {
	if n < 1 {
		return nil, tooFew(n)
	}
	if err := l.canReserve(); err != nil {
		return nil, err
	}
	r := rate.Request{Key: key, Tokens: n}
	d, err := l.decideOne(ctx, &r, func(limit Limit, _ *LimitRule) (time.Duration, error) {
		return min(cmp.Or(l.config.MaxAhead, limit.Window()), MaxWindow-limit.Window()), nil
	})
	if err != nil {
		return nil, err
	}
	r.Limit = d.Limit // of which it may have been given a share
	return &Reservation{limiter: l, request: r, decision: d, due: time.Now().Add(bucket.AtMost(d.Delay))}, nil
}

// OK says whether the tokens are reserved.
func (r *Reservation) OK() bool { return r.decision.Allowed }

// Decision is the answer to the request. If it is not OK, RetryAfter says when the tokens would be
// there.
func (r *Reservation) Decision() Decision { return r.decision }

// Delay is how long to wait from now until the tokens may be used: zero if they may be used at
// once, and the longest Duration if the Reservation is not OK.
func (r *Reservation) Delay() time.Duration {
	if !r.OK() {
		return math.MaxInt64
	}
	return max(0, time.Until(r.due))
}

// Cancel gives the tokens back, as [Limiter.Refund] does: all of them, unless some were refilled since they
// were due, or others have reserved behind them. A Reservation that is not OK, or was cancelled
// already, has nothing to give back: after an error too, because the tokens may have been given back.
func (r *Reservation) Cancel(ctx context.Context) error {
	if !r.OK() || r.decision.Source.IsFree() || r.over.Swap(true) {
		return nil
	}
	return r.limiter.refund(ctx, refundsOf(r.request, r.decision, r.decision.Granted))
}
