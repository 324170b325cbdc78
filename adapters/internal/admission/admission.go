// Package admission is what the adapters share. Those of servers ask a Limiter whether a request may pass, keep its
// decisions in the context of the request, give tokens back, and log what fails. Those of clients pause a key.
package admission

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/semaphore"
)

// Limits asks a Limiter for an adapter, and logs what fails.
type Limits struct {
	*pglimit.Limiter
	Logger  *slog.Logger // nil: slog.Default()
	Adapter string       // its package, which begins the messages

	undecided, unpaid Failures
}

// Uses says which fields of an adapter's Config are set.
type Uses struct{ Key, Limit, Requests, Refund bool }

// Check returns an error if the fields do not go together, or if the limiter cannot do what they ask of it.
func (l *Limits) Check(uses Uses) error {
	switch {
	case l.Limiter == nil:
		return fmt.Errorf("%s: the limiter is nil", l.Adapter)
	case !uses.Key:
		return fmt.Errorf("%s: Config.Key is nil: say whom requests are counted for, for instance the client's address",
			l.Adapter)
	case uses.Requests && uses.Limit:
		return fmt.Errorf("%s: Config.Limit and Config.Requests are both set: set the Limit of each of the Requests",
			l.Adapter)
	}
	strategy := l.Strategy()
	if uses.Requests {
		if err := strategy.Check(&rate.Request{Limit: l.Limit(), Group: 1}); err != nil {
			return fmt.Errorf("%s: Config.Requests is set, but %w", l.Adapter, err)
		}
		if config := l.Config(); config.Block != (pglimit.Block{}) {
			return fmt.Errorf("%[1]s: Config.Requests is set, but the limiter %[2]s has a Block, and takes no groups: "+
				"limit twice, with Refund: %[1]s.OnFailure by %[2]s, and inside of that by the other Requests",
				l.Adapter, config.Name)
		}
	}
	if _, able := strategy.(pglimit.GiveBacker); uses.Refund && !able {
		return fmt.Errorf("%s: Config.Refund is set, but the strategy %s takes nothing back", l.Adapter, strategy.Name())
	}
	return nil
}

// Ask the limiter for one request. Its decision is appended to into.
func (l *Limits) Ask(ctx context.Context, r pglimit.Request, into []pglimit.Decision) (pglimit.Group, error) {
	d, err := l.Do(ctx, r)
	return pglimit.Group{Allowed: d.Allowed, RetryAfter: d.RetryAfter, Decisions: append(into, d)}, err
}

// AskAll asks for several limits, all or nothing. Requests without Tokens are for the cost.
func (l *Limits) AskAll(ctx context.Context, requests []pglimit.Request, cost int64) (pglimit.Group, error) {
	if len(requests) == 0 {
		return pglimit.Group{}, &ConfigError{"Requests", errors.New("there are none: what has no limit is for Config.Skip")}
	}
	requests = slices.Clone(requests)
	for i := range requests {
		r := &requests[i]
		switch err := checkKey(r.Key); {
		case errors.Is(err, ErrBadRequest): // the client, who sees the text, has sent one request
			return pglimit.Group{}, &ConfigError{"Requests", err}
		case err != nil:
			return pglimit.Group{}, &ConfigError{"Requests", fmt.Errorf("request %d: %w", i, err)}
		}
		if r.Tokens < 0 {
			return pglimit.Group{}, &ConfigError{"Requests",
				fmt.Errorf("request %d: Tokens is %d: it must be at least 1, or 0 for the Cost", i, r.Tokens)}
		}
		r.Tokens = cmp.Or(r.Tokens, cost)
	}
	return l.DoAll(ctx, requests...)
}

// Undecided logs that no decision is known, unless there was no place in a semaphore, as is to be expected.
func (l *Limits) Undecided(ctx context.Context, err error, where ...string) {
	if !errors.Is(err, semaphore.ErrFull) {
		l.undecided.Log(ctx, l.logger(), l.Adapter+": not decided", err, where...)
	}
}

// refundTimeout ends a refund if the Limiter has NoTimeout, so that no wait is unbounded.
const refundTimeout = 5 * time.Second

// GiveBack refunds even if the client has gone, as Limiter.Refund does: that is when requests fail.
func (l *Limits) GiveBack(ctx context.Context, taken []pglimit.Decision, where ...string) {
	ctx, cancel := context.WithTimeout(ctx, refundTimeout)
	defer cancel()
	for _, d := range taken {
		if err := l.Refund(ctx, d, d.Granted); err != nil {
			l.unpaid.Log(ctx, l.logger(), l.Adapter+": tokens not given back", err, where...)
		}
	}
}

func (l *Limits) logger() *slog.Logger { return cmp.Or(l.Logger, slog.Default()) }

// Fallback says whether Config.OnError of the Limiter decided, instead of the limit.
func Fallback(decisions []pglimit.Decision) bool { return decisions[0].Source == pglimit.FromFallback }

// Place takes a place of the key. The error is semaphore.ErrFull if there is none, or none in time.
func Place(ctx context.Context, places *semaphore.Semaphore, key string, wait bool) (*semaphore.Permit, error) {
	if wait {
		return places.Acquire(ctx, key)
	}
	permit, ok, err := places.TryAcquire(ctx, key)
	if err == nil && !ok {
		err = semaphore.ErrFull
	}
	return permit, err
}
