package integration

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
	"github.com/pglimit/ratelimit/strategies/strategytest"
)

var allStrategies = strategies.All()

var hours = pglimit.Every(1000 * time.Hour) // nothing comes back during a test

// eachStrategy runs the test for one strategy after another, on the same database: each has its own tables.
func eachStrategy(t *testing.T, test func(*testing.T, *pgxpool.Pool, strategies.Strategy)) {
	t.Helper()
	pool := newMigrated(t)
	for _, strategy := range strategies.All() {
		t.Run(strategy.Name(), func(t *testing.T) {
			if raceDetector && strategy.Name() != "token_bucket" && strategy.Name() != "warm_up" {
				t.Skip("differs in SQL only, which the race detector does not see")
			}
			test(t, pool, strategy)
		})
	}
}

// eachTokenBucket is eachStrategy for the strategies whose buckets fill as token buckets, each in a row or range of the
// same columns.
func eachTokenBucket(t *testing.T, test func(*testing.T, *pgxpool.Pool, strategies.Strategy)) {
	t.Helper()
	eachStrategy(t, func(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy) {
		if strategy.Rule() != (strategies.TokenBucket{}).Rule() {
			t.Skip("about token buckets")
		}
		test(t, pool, strategy)
	})
}

// inParts returns the limit; with a burst of one, if the strategy does not grant a burst in parts.
func inParts(strategy strategies.Strategy, limit pglimit.Limit) pglimit.Limit {
	if strategy.Check(&rate.Request{Limit: limit}) != nil || strategy.Name() == "warm_up" {
		limit.Burst = 1
	}
	return limit
}

// inTokens is a strategy whose tokens add up: each costs the same.
func inTokens(strategy strategies.Strategy) strategies.Strategy {
	if strategy.Name() == "warm_up" {
		return strategies.WarmUp{ColdFactor: 1}
	}
	return strategy
}

func TestConformance(t *testing.T) {
	t.Parallel()
	for _, strategy := range strategies.All() {
		t.Run(strategy.Name(), func(t *testing.T) {
			t.Parallel()
			strategytest.Run(t, newMigrated, strategy)
		})
	}
}

// take is one all-or-nothing request, of which the test needs no more than the
// answer.
func take(t *testing.T, db database, strategy strategies.Strategy, key string, limit pglimit.Limit) pglimit.Decision {
	t.Helper()
	d, err := tryTake(t, db, strategy, key, limit)
	must(t, err)
	return d
}

func tryTake(t *testing.T, db database, strategy strategies.Strategy, key string, limit pglimit.Limit) (pglimit.Decision, error) {
	t.Helper()
	decisions, err := strategy.Take(t.Context(), on(db), []rate.Request{{Limiter: "test", Key: key, Limit: limit, Tokens: 1, Unit: 1}})
	if err != nil {
		return pglimit.Decision{}, err
	}
	return decisions[0], nil
}
