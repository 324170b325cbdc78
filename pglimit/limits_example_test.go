package pglimit_test

import (
	"context"
	"fmt"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
)

// Customers have plans, and one has a limit of her own.
func ExampleLimiter_Do_limit() {
	ctx := context.Background()
	limiter, _ := pglimit.New(noDB{}, pglimittest.Memory(), pglimit.Config{Name: "api", Limit: pglimit.PerMinute(10)})

	plans := map[string]pglimit.Limit{
		"pro":       pglimit.PerMinute(100),
		"pro:alice": pglimit.PerMinute(500),
	}
	for _, customer := range []struct{ name, plan string }{{"bob", "free"}, {"carol", "pro"}, {"alice", "pro:alice"}} {
		d, _ := limiter.Do(ctx, pglimit.Request{Key: customer.name, Limit: plans[customer.plan], Tokens: 1}) // a plan that is not listed has the Limiter's limit
		fmt.Println(customer.name, d.Allowed, d.Remaining, "of", d.Limit)
	}
	// Output:
	// bob true 9 of 10/1m
	// carol true 99 of 100/1m
	// alice true 499 of 500/1m
}

// One round trip for the user and the user's tenant, each with a limit of its own.
func ExampleLimiter_DoEach_limits() {
	limiter, _ := pglimit.New(noDB{}, pglimittest.Memory(), pglimit.Config{Name: "user", Limit: pglimit.PerSecond(10)})
	decisions, _ := limiter.DoEach(context.Background(),
		pglimit.Request{Key: "alice", Tokens: 1},
		pglimit.Request{Limiter: "tenant", Key: "acme", Tokens: 1, Limit: pglimit.PerSecond(1000)},
	)
	for _, d := range decisions {
		fmt.Println(d.Limiter, d.Key, d.Allowed, d.Remaining)
	}
	// Output:
	// user alice true 9
	// tenant acme true 999
}

func ExampleLimiter_SetLimit() {
	ctx := context.Background()
	limiter, _ := pglimit.New(noDB{}, pglimittest.Memory(), pglimit.Config{Name: "api", Limit: pglimit.Every(time.Minute)})
	first, _ := limiter.Allow(ctx, "user:42")
	second, _ := limiter.Allow(ctx, "user:42")
	_ = limiter.SetLimit(pglimit.PerMinute(5))
	third, _ := limiter.Allow(ctx, "user:42") // what was used stays used
	fmt.Println(first.Allowed, second.Allowed, third.Allowed, third.Remaining)
	fmt.Println(limiter.SetLimit(pglimit.PerMinute(0)))
	// Output:
	// true false true 3
	// pglimit: Limit.Tokens is 0: it must be at least 1
}
