package pglimit_test

import (
	"context"
	"fmt"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
)

// A request whose answer was lost is sent again with its ID, and is charged once.
func ExampleLimiter_Do_id() {
	limiter, _ := pglimit.New(noDB{}, pglimittest.Memory(), pglimit.Config{ // strategies.TokenBucket{}, say
		Name:  "mails",
		Limit: pglimit.PerHour(100),
		IDTTL: 10 * time.Minute, // longer than all tries take
	})
	for _, id := range []string{"mail-17", "mail-17", "mail-18"} {
		d, err := limiter.Do(context.Background(), pglimit.Request{Key: "user:42", Tokens: 1, ID: id})
		fmt.Println(id, d.Allowed, d.Remaining, err)
	}
	// Output:
	// mail-17 true 99 <nil>
	// mail-17 true 99 <nil>
	// mail-18 true 98 <nil>
}

// Whoever goes on guessing passwords when three were wrong is locked out for a minute, then for two,
// and so on up to a day; after a quiet day it is a minute again.
func ExampleConfig_block() {
	limiter, _ := pglimit.New(noDB{}, pglimittest.Memory(), pglimit.Config{ // strategies.TokenBucket{}, say
		Name:  "login",
		Limit: pglimit.Every(10 * time.Second).WithBurst(3),
		Block: pglimit.Block{After: 2, Within: time.Minute, For: time.Minute, Max: 24 * time.Hour, Forget: 24 * time.Hour},
	})
	for range 5 {
		d, _ := limiter.Allow(context.Background(), "user:42")
		switch {
		case d.Allowed:
			fmt.Println("check the password")
		case d.Blocked:
			fmt.Println("locked for", d.BlockedFor)
		default:
			fmt.Println("retry after", d.RetryAfter)
		}
	}
	// Output:
	// check the password
	// check the password
	// check the password
	// retry after 10s
	// locked for 1m0s
}
