package integration

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
)

// Settle says so if it cannot charge all: a bucket owes one more burst at most.
func TestSettleSaysWhatWasNotCharged(t *testing.T) {
	t.Parallel()
	const burst = 5
	pool, memory := newMigrated(t), pglimittest.Memory()
	for _, strategy := range []pglimit.Strategy{strategies.TokenBucket{}, strategies.Upsert{}, memory} {
		t.Run(strategy.Name(), func(t *testing.T) {
			limiter, err := pglimit.New(pool, strategy, pglimit.Config{Name: "test", Limit: hours.WithBurst(burst), Timeout: time.Minute})
			must(t, err)
			defer func() { must(t, limiter.Close(t.Context())) }()
			settle := func(d pglimit.Decision, actual, charged int64, want error) {
				t.Helper()
				if settled, err := limiter.Settle(t.Context(), d, actual); settled.Granted != charged || !errors.Is(err, want) {
					t.Errorf("%d of %d tokens were charged, %v; want %d, %v", settled.Granted, actual, err, charged, want)
				}
			}
			granted := func(n int64) pglimit.Decision {
				t.Helper()
				d, err := limiter.AllowN(t.Context(), "k", n)
				if err != nil || !d.Allowed {
					t.Fatal(d, err)
				}
				return d
			}
			one, two, three := granted(1), granted(2), granted(2)
			settle(one, 4, 4, nil)                     // owes 3
			settle(two, 5, 4, pglimit.ErrNotCharged)   // a part of it
			settle(three, 7, 2, pglimit.ErrNotCharged) // nothing
			settle(three, 2, 2, nil)
			must(t, limiter.Reset(t.Context(), "k"))
			settle(granted(2), math.MaxInt64, 2*burst, pglimit.ErrNotCharged) // all that may be owed
			if d, err := limiter.Peek(t.Context(), "k"); err != nil || d.ResetAfter <= (2*burst-1)*hours.Period || d.ResetAfter > 2*burst*hours.Period {
				t.Errorf("%+v, %v: want a debt of a burst", d, err)
			}
		})
	}
}

// Numbers at the end of what a bigint holds are charged like any others.
func TestSettleOfHugeNumbers(t *testing.T) {
	t.Parallel()
	limit := pglimit.Every(1).WithBurst(int64(pglimit.MaxWindow) / 2)
	pool, memory := newMigrated(t), pglimittest.Memory()
	for _, strategy := range []pglimit.Strategy{strategies.TokenBucket{}, strategies.Upsert{}, memory} {
		limiter, err := pglimit.New(pool, strategy, pglimit.Config{Name: "test", Limit: limit, Timeout: time.Minute})
		must(t, err)
		d, err := limiter.AllowN(t.Context(), "k", limit.Burst)
		must(t, err)
		settled, err := limiter.Settle(t.Context(), d, math.MaxInt64)
		if most := 2 * limit.Burst; !errors.Is(err, pglimit.ErrNotCharged) || settled.Granted < most || settled.Granted > most+1e11 { // a token a nanosecond flows back
			t.Errorf("%s: %d of %d, %v", strategy.Name(), settled.Granted, most, err)
		}
		must(t, limiter.Close(t.Context()))
	}
}

// Two requests of 2^62 tokens in one call are more than a number can hold. Of a bucket that has
// the tokens for one, the first is granted, and the second is told how long the rest takes.
func TestRequestsWhoseSumIsTooLarge(t *testing.T) {
	t.Parallel()
	const tokens = int64(1) << 62
	eachTokenBucket(t, func(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy) {
		limit := pglimit.PerSecond(pglimit.MaxRate).WithBurst(int64(pglimit.MaxWindow)) // a token is back in a nanosecond
		if strategy.Check(&rate.Request{Limit: limit}) != nil {
			t.Skip("it has one token")
		}
		ask := func(key string, unit int64, limit pglimit.Limit) rate.Request {
			return rate.Request{Limiter: "test", Key: key, Limit: limit, Tokens: tokens, Unit: unit}
		}
		slow := hours.WithBurst(10)
		for name, requests := range map[string][]rate.Request{
			"one key":      {ask("a", tokens, limit), ask("a", tokens, limit)},
			"among others": {ask("b", tokens, limit), ask("b", tokens, limit), ask("c", 1, slow), ask("c", 1, slow)},
		} {
			decisions, err := taken(pool, func() ([]pglimit.Decision, error) { return strategy.Take(t.Context(), on(pool), requests) })
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			first, second := decisions[0], decisions[1]
			if first.Granted != tokens || second.Allowed || second.Granted != 0 {
				t.Errorf("%s: granted %d and %d, want the first alone", name, first.Granted, second.Granted)
			}
			// 2^63 less what is back already.
			missing := time.Duration(tokens - (int64(pglimit.MaxWindow) - tokens))
			if wait := second.RetryAfter; wait > missing+time.Microsecond || wait < missing-time.Hour {
				t.Errorf("%s: the second may retry after %v, want %v", name, wait, missing)
			}
			if len(decisions) > 2 && (decisions[2].Granted != 10 || decisions[3].Granted != 0) {
				t.Errorf("%s: as much as there is of 10 is %d and %d", name, decisions[2].Granted, decisions[3].Granted)
			}
		}
	})
}
