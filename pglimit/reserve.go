package pglimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/pglimit/ratelimit/internal/bucket"
)

// Reservation is what [Limiter.Reserve] returns: tokens that may be used after Delay, as in
// golang.org/x/time/rate.
type Reservation struct {
	limiter  *Limiter
	request  Request
	decision Decision
	due      time.Time // by this process's clock
	over     atomic.Bool
}

// Reserve takes one token of the key's bucket, if need be before it is there: see
// [Limiter.ReserveN].
func (l *Limiter) Reserve(ctx context.Context, key string) (*Reservation, error) {
	return l.ReserveN(ctx, key, 1)
}

// ReserveN takes n tokens of the key's bucket, which may be used after the Reservation's Delay. Nobody else
// gets them. If they come back later than [Config].MaxAhead from now, nothing is taken and
// the Reservation is not OK. More tokens than a burst are a [*RequestError]. The strategy must be a
// [Reserver], without Config.Block; else the error satisfies errors.Is(err, [errors.ErrUnsupported]). If
// OnError granted them, the Reservation is OK, and Cancel has nothing to give back.
func (l *Limiter) ReserveN(ctx context.Context, key string, n int64) (*Reservation, error) {
	if n < 1 {
		return nil, tooFew(n)
	}
	if err := l.canReserve(); err != nil {
		return nil, err
	}
	r := l.request(key, n)
	r.Ahead = min(cmp.Or(l.config.MaxAhead, r.Limit.Window()), MaxWindow-r.Limit.Window())
	d, err := l.decide(ctx, r)
	if err != nil {
		return nil, err
	}
	return &Reservation{limiter: l, request: r, decision: d, due: time.Now().Add(bucket.AtMost(d.Delay))}, nil
}

// request for n tokens of the key under the Limiter's own limit, all or nothing.
func (l *Limiter) request(key string, n int64) Request {
	return Request{Limiter: l.config.Name, Key: key, Limit: l.Limit(), Tokens: n, Unit: n, Durability: l.config.Durability}
}

func (l *Limiter) canReserve() error {
	if _, able := l.strategy.(Reserver); !able {
		return fmt.Errorf("pglimit: the strategy %s cannot reserve tokens (token_bucket and upsert can): %w", l.strategy.Name(), errors.ErrUnsupported)
	}
	if l.blocks() {
		return fmt.Errorf("pglimit: a Limiter with Config.Block grants no tokens ahead of their time: ask another Limiter: %w", errors.ErrUnsupported)
	}
	return nil
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
	if !r.OK() || r.decision.Source == FromFallback || r.over.Swap(true) {
		return nil
	}
	return r.limiter.refund(ctx, refundOf(r.request, r.decision, r.decision.Granted))
}
