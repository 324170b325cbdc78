package pglimit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pglimit/ratelimit/internal/bucket"
	"github.com/pglimit/ratelimit/pglimit/internal/flight"
	"github.com/pglimit/ratelimit/pglimit/internal/wait"
)

// ErrWaitTooLong: the tokens come too late for a Wait, which has taken nothing, or given back what it had
// reserved. RetryAfter of the Decision that comes with it says how long it would have been.
var ErrWaitTooLong = errors.New("pglimit: the wait would be too long")

var errWaitWithoutEnd = errors.New("pglimit: a wait without end: give the context of Wait a deadline, or set Config.MaxWait")

// Wait takes one token of the key's bucket, and returns when it may be used: see [Limiter.WaitN].
func (l *Limiter) Wait(ctx context.Context, key string) (Decision, error) {
	return l.WaitN(ctx, key, 1)
}

// WaitN takes n tokens of the key's bucket, and returns when they may be used. If they are not
// there, they are reserved, in one round trip: callers of all processes are served in the order in
// which Postgres was asked. The error is nil if, and only if, they may be used.
//
// WaitN fails at once and takes nothing, with [ErrWaitTooLong], if the tokens come later than the
// deadline of ctx, or than [Config].MaxWait; one of the two must be set. (Only if the round trip uses up
// that time, the tokens are reserved and given back. Config.Timeout is for the round trip, and once more
// for a wait before it, while reservations of others are given back.) If ctx ends while it waits, or the
// Limiter is closed, the tokens are given back: later waiters of this process, for as many tokens of the key, move up, and who comes takes the
// place that is empty then. If nobody does, the tokens go back to the bucket, unless others are
// reserved behind them: by another process, by a Reserve, or for a waiter under another limit or for
// another number of tokens. That takes up to a second more.
//
// More tokens than a burst are a [*RequestError]. If no decision is known and OnError denies, the error
// satisfies errors.Is(err, [ErrUnavailable]). The strategy must be a [Reserver], without Config.Block; and a
// Limiter of InTx or OnConn cannot wait, because the row would stay locked. Else the error satisfies
// errors.Is(err, [errors.ErrUnsupported]).
func (l *Limiter) WaitN(ctx context.Context, key string, n int64) (Decision, error) {
	return l.waitN(ctx, key, n, l.config.MaxWait)
}

// WaitUpTo is [Limiter.WaitN] with a [Config].MaxWait of the call's own, which must be positive; the
// smaller of both counts. Unlike a deadline of ctx it bounds only the wait, not the round trip before
// it, for which Config.Timeout is: tokens that are there are granted, however short longest is.
func (l *Limiter) WaitUpTo(ctx context.Context, key string, n int64, longest time.Duration) (Decision, error) {
	if longest <= 0 {
		return Decision{}, &RequestError{Field: "Ahead", Why: fmt.Sprintf("is %v: a wait must be positive (to take without waiting, use Allow)", longest)}
	}
	if l.config.MaxWait > 0 {
		longest = min(longest, l.config.MaxWait)
	}
	return l.waitN(ctx, key, n, longest)
}

// waitN waits for longest at most; zero: until the deadline of ctx.
func (l *Limiter) waitN(ctx context.Context, key string, n int64, longest time.Duration) (Decision, error) {
	if n < 1 {
		return Decision{}, tooFew(n)
	}
	if err := l.canWait(); err != nil {
		return Decision{}, err
	}
	r := l.request(key, n)
	err := l.sleepers.Enter(1)
	if err != nil {
		var d Decision
		err = l.tell(ctx, &r, &d, err)
		return d, err
	}
	defer l.sleepers.Leave(1)
	if r.Ahead, err = l.longestWait(ctx, r.Limit, longest); err != nil {
		return Decision{}, err
	}
	if err = l.complete(&r, r.Limit); err != nil {
		return Decision{}, err
	}
	var own *sleeper
	d, known := l.known(&r)
	if !known {
		own, d, err = l.findPlace(ctx, &r)
	}
	told := false
	defer func() {
		if own != nil && !told { // a hook of the user's panics
			l.sleepers.giveUp(ctx, r, own)
		}
	}()
	err = l.tell(ctx, &r, &d, err)
	told = true
	switch {
	case own != nil:
		return l.sitOut(ctx, r, own, d)
	case err != nil:
		return Decision{}, err
	case d.Allowed && d.Delay > 0: // by the fallback
		return l.sitOut(ctx, r, l.sleepers.join(r, d), d)
	case d.Allowed:
		return d, nil
	case d.Source == FromFallback:
		return d, fmt.Errorf("%w: so nobody can wait in turn, and OnError denied the request", ErrUnavailable)
	}
	return d, tooLong(d.RetryAfter, r.Ahead)
}

// findPlace takes an empty place, or asks Postgres for one. own is nil if there is none, or the tokens
// are not Postgres's.
func (l *Limiter) findPlace(ctx context.Context, r *Request) (own *sleeper, d Decision, err error) {
	atDoor, cancel := l.timed(ctx)
	own, d, err = l.sleepers.come(atDoor, r)
	err = l.late(ctx, atDoor, err)
	cancel()
	if err != nil || own != nil {
		return own, d, err
	}
	return l.askForPlace(ctx, *r)
}

// askForPlace asks Postgres. Who leaves meanwhile need not wait for the answer, but it is heard: what
// was reserved is given back in its turn.
func (l *Limiter) askForPlace(ctx context.Context, r Request) (own *sleeper, d Decision, err error) {
	type answer struct {
		own      *sleeper
		decision Decision
	}
	var caller wait.Caller[Request, answer]
	caller.Begin(r)
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(max(flight.SettleTime, l.timeout), cancel) }) // sooner, it would not be known what it took
	l.sleepers.Stay(1)
	go func() {
		defer l.sleepers.Leave(1)
		defer cancel()
		defer stop()
		d, err := l.ask(longer, r)
		own := l.sleepers.answered(r, d)
		if own != nil {
			d = own.first
		}
		switch heard := caller.Answer(answer{own, d}, err); {
		case heard:
		case own != nil:
			l.sleepers.giveUp(longer, r, own)
		default:
			l.sleepers.stats.Lost.Add(d.Granted) // of a lease
		}
	}()
	got, err := caller.Await(ctx, caller.Leave)
	return got.own, got.decision, err
}

func (l *Limiter) canWait() error {
	if err := l.canReserve(); err != nil {
		return err
	}
	if l.parent != nil {
		return fmt.Errorf("pglimit: a wait in a transaction would hold the row locked: Reserve, or Wait on the Limiter itself: %w", errors.ErrUnsupported)
	}
	return nil
}

// longestWait is how long a caller with this context, and this bound unless it is zero, may wait. The deadline is rounded down to a
// millisecond, so that the requests of callers with equal timeouts can be combined.
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

func tooLong(wait, most time.Duration) error {
	return fmt.Errorf("%w: the tokens are due in %v, and the context's deadline, Config.MaxWait or the caller allows %v", ErrWaitTooLong, wait, most)
}

// sitOut waits until the tokens are due, by the database's clock, or gives them back.
func (l *Limiter) sitOut(ctx context.Context, r Request, own *sleeper, d Decision) (Decision, error) {
	err := l.sleepers.sleep(ctx, own)
	if err == nil {
		return l.sleepers.leave(r, own), nil
	}
	l.sleepers.giveUp(ctx, r, own)
	if !errors.Is(err, ErrWaitTooLong) {
		return Decision{}, err
	}
	d.Allowed, d.Granted, d.RetryAfter, d.Delay = false, 0, d.Delay, 0
	return d, err
}
