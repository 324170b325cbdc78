package pglimit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pglimit/ratelimit/internal/bucket"
	"github.com/pglimit/ratelimit/pglimit/internal/queue"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Pause lets nobody, in any process, take tokens of the key's bucket before a time: for an API that has said when it
// may be called again. Then there is one token, and the others come back behind it, one after another, whatever was
// there before; what was used stays used. Who must not wait is denied, and RetryAfter says when the pause ends (in a
// calendar window, if what is asked is there then). These denials do not count towards a Block.
//
// Who waits in a Wait or a DoAll looks when his tokens are due: if the bucket is paused, he gives them back and takes
// again, behind the pause, and behind those whose tokens are due later. If that is too long, it is [ErrWaitTooLong].
// (Who waits for less than 50 ms does not look. OnDecision and Stats hear of both takes.) A Reserve stays as it is.
//
// A Pause that ends earlier than another one changes nothing: it can only extend it. [Limiter.Reset] ends it. A time
// that has passed does nothing; more than [MaxBlock] ahead is a [*RequestError]. until is a time by this process's
// clock; as it is a span for Postgres, the two clocks need not agree. Rules that answer without a bucket, such as
// ActionAllow, go on, and so does OnError; a request with an ID that was granted before is told so.
//
// Where processes spend leases of the bucket (see [Config.Leases]), Pause returns when these have ended, or with an
// error when ctx ends; the bucket is paused all the same. (In a transaction it does not wait for them.) The strategy
// must be a [Pauser]; else the error satisfies errors.Is(err, [errors.ErrUnsupported]).
func (l *Limiter) Pause(ctx context.Context, key string, until time.Time) error {
	if err := rate.CheckKey(key); err != nil {
		return err
	}
	strategy, able := l.strategy.(Pauser)
	if !able {
		return fmt.Errorf("pglimit: the strategy %s cannot pause a key: %w", l.strategy.Name(), errors.ErrUnsupported)
	}
	if left := time.Until(until); left > MaxBlock {
		return &RequestError{Field: "until", Why: fmt.Sprintf("is in %v: a pause lasts %v at most", left, MaxBlock)}
	}
	of := rate.Bucket{Limiter: l.config.Name, Key: key}
	var leased time.Duration
	err := l.asCaller(ctx, 1, func(ctx context.Context) error {
		defer l.leases.Pause(of)() // until it is paused: a lease could be spent in it
		if err := l.leases.Drop(ctx, of); err != nil {
			return err
		}
		length := min(bucket.AtMost(time.Until(until)), MaxBlock)
		if length <= 0 {
			return nil
		}
		return l.call(ctx, "pause", 0, func(ctx context.Context) error {
			_, err := l.nodes.at(ctx, key, l.session, func(session Session) (err error) {
				leased, err = strategy.Pause(ctx, session, of.Limiter, key, length, l.config.Durability)
				return err
			})
			return err
		})
	})
	if err != nil {
		return fmt.Errorf("pglimit: pause of %q: %w", key, err)
	}
	if leased == 0 || l.parent != nil {
		return nil
	}
	if err := l.queue.Sleep(ctx, bucket.AtMost(leased)); err != nil {
		return fmt.Errorf("pglimit: %q is paused, but other processes may grant out of leases for up to %v: %w",
			key, leased, err)
	}
	return nil
}

// errPaused: the tokens that were due have been given back, because their bucket is paused.
var errPaused = errors.New("pglimit: paused")

// looksAfter is how long a caller has waited who looks whether there was a pause meanwhile. Callers of a fast limit
// wait for less, and need not.
const looksAfter = 50 * time.Millisecond

// behindPauses looks whether a bucket of the claim, whose tokens are due now, is paused. If so, it gives the claim's
// tokens back, and returns errPaused. If Postgres does not answer, they may be used: they are granted.
func (l *Limiter) behindPauses(ctx context.Context, c *claim) error {
	strategy, able := l.strategy.(Pauser)
	if !able || c.Decisions[0].Source != FromDatabase || queue.Delay(c.Decisions) < looksAfter {
		return nil
	}
	paused := false
	_ = l.asCaller(ctx, 1, func(ctx context.Context) error {
		return l.call(ctx, "look", 0, func(ctx context.Context) error {
			for i := range c.Requests {
				r := &c.Requests[i]
				_, err := l.nodes.at(ctx, r.Key, l.session, func(session Session) error {
					left, err := strategy.Paused(ctx, session, r.Limiter, r.Key)
					paused = paused || left > 0
					return err
				})
				if err != nil || paused {
					return err
				}
			}
			return nil
		})
	})
	if !paused {
		return nil
	}
	var refunds []Refund
	for i := range c.Decisions {
		refunds = append(refunds, refundOf(c.Requests[i], c.Decisions[i], c.Decisions[i].Granted)) // what is observed stays
	}
	_ = l.refund(ctx, refunds) // else they are lost until they have flowed back
	return errPaused
}
