package pglimit_test

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
	"github.com/pglimit/ratelimit/strategies"
)

// Operators change the limits of all Limiters of the process in the table pglimit.limits, while it runs.
func ExampleLimitsFrom() {
	serve := func(pool *pgxpool.Pool) (api, login *pglimit.Limiter, err error) {
		rules := pglimit.LimitsFrom(pool, pglimit.LimitsConfig{})
		api, err = pglimit.New(pool, strategies.TokenBucket{}, pglimit.Config{Name: "api", Limit: pglimit.PerSecond(10), Limits: rules})
		if err != nil {
			return nil, nil, err
		}
		login, err = pglimit.New(pool, strategies.TokenBucket{}, pglimit.Config{Name: "login", Limit: pglimit.PerMinute(5), Limits: rules})
		return api, login, err
	}
	_ = serve
}

// A test of a service says which rules there are. The Decision says which one decided.
func ExampleFixedLimits() {
	limiter, _ := pglimittest.New(pglimittest.Memory(), pglimit.Config{
		Name: "api", Limit: pglimit.PerSecond(10),
		Limits: pglimit.FixedLimits(
			pglimit.LimitRule{Limiter: "api", Key: "user:42", Limit: pglimit.PerSecond(50), Note: "ticket 7"},
			pglimit.LimitRule{Limiter: "api", Prefix: "bot:", Action: pglimit.ActionDeny, Note: "scraping"},
			pglimit.LimitRule{Limiter: "api", Action: pglimit.ActionObserve, Limit: pglimit.PerSecond(1), Note: "would one do?"},
		),
	})
	ctx := context.Background()
	for _, key := range []string{"user:42", "bot:7", "me", "me"} {
		d, _ := limiter.Allow(ctx, key)
		fmt.Println(key, d.Allowed, d.Remaining, d.Rule != nil, d.Observed == nil || d.Observed.Allowed)
	}
	// Output:
	// user:42 true 49 true true
	// bot:7 false 0 true true
	// me true 9 false true
	// me true 8 false false
}
