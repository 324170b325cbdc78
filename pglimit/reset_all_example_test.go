package pglimit_test

import (
	"context"
	"fmt"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
)

// After an incident, say, everybody is to start with a full bucket.
func ExampleLimiter_ResetAll() {
	ctx := context.Background()
	limiter, err := pglimit.New(noDB{}, pglimittest.Memory(), pglimit.Config{Name: "api", Limit: pglimit.PerHour(1)})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, key := range []string{"user:1", "user:2", "user:1"} {
		d, err := limiter.Allow(ctx, key)
		fmt.Println(key, d.Allowed, err)
	}
	removed, err := limiter.ResetAll(ctx)
	fmt.Println(removed, err)
	d, err := limiter.Allow(ctx, "user:1")
	fmt.Println(d.Allowed, err)
	// Output:
	// user:1 true <nil>
	// user:2 true <nil>
	// user:1 false <nil>
	// 2 <nil>
	// true <nil>
}
