package pglimit_test

import (
	"context"
	"fmt"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
)

// A user may do something ten times a second and three times a day; an organisation a hundred
// times a second.
func ExampleLimiter_DoAll() {
	ctx := context.Background()
	limiter, err := pglimit.New(noDB{}, pglimittest.Memory(), pglimit.Config{
		Name:  "api",
		Limit: pglimit.PerSecond(10),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 4 {
		g, err := limiter.DoAll(ctx,
			pglimit.Request{Key: "user:42", Tokens: 1},
			pglimit.Request{Key: "user:42", Limiter: "api/day", Limit: pglimit.Every(24 * time.Hour).WithBurst(3), Tokens: 1},
			pglimit.Request{Key: "org:7", Limit: pglimit.PerSecond(100), Tokens: 1},
		)
		switch {
		case err != nil:
			fmt.Println("no decision:", err)
		case g.Allowed:
			fmt.Println("allowed,", g.Decisions[1].Remaining, "left today")
		default:
			fmt.Printf("denied by %s (%v), retry after %v\n", g.Denied.Limiter, g.Denied.Limit, g.RetryAfter.Round(time.Minute))
		}
	}
	// Output:
	// allowed, 2 left today
	// allowed, 1 left today
	// allowed, 0 left today
	// denied by api/day (1/24h burst 3), retry after 24h0m0s
}
