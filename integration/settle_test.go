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
