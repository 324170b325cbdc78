package pglimit_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
)

// unreachable is a strategy whose server is down.
func unreachable() pglimit.Strategy {
	memory := pglimittest.Memory()
	memory.Fail(errors.New("connection refused"))
	return memory
}

func ExampleNew() {
	ctx := context.Background()
	pool := noDB{} // your *pgxpool.Pool

	limiter, err := pglimit.New(pool, pglimittest.Memory(), pglimit.Config{ // strategies.TokenBucket{}, say
		Name:  "api",
		Limit: pglimit.PerSecond(10).WithBurst(2),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 3 {
		d, err := limiter.Allow(ctx, "user:42")
		switch {
		case err != nil:
			fmt.Println("no decision:", err)
		case d.Allowed:
			fmt.Println("allowed,", d.Remaining, "left")
		default:
			fmt.Println("denied, retry after", d.RetryAfter.Round(100*time.Millisecond))
		}
	}
	// Output:
	// allowed, 1 left
	// allowed, 0 left
	// denied, retry after 100ms
}

func ExampleNewSQL() {
	ctx := context.Background()
	var db sql.DB // yours is open

	limiter, err := pglimit.NewSQL(&db, pglimittest.Memory(), pglimit.Config{Name: "jobs", Limit: pglimit.PerHour(100)})
	if err != nil {
		fmt.Println(err)
		return
	}
	d, err := limiter.Allow(ctx, "user:42")
	fmt.Println(d.Allowed, d.Remaining, err)

	tx := noSQLTx{} // your *sql.Tx: if it is rolled back, the token is not charged
	d, err = limiter.On(pglimit.InSQLTx(tx)).Allow(ctx, "user:42")
	fmt.Println(d.Allowed, d.Remaining, err)
	// Output:
	// true 99 <nil>
	// true 98 <nil>
}

func ExampleLimiter_AllowN() {
	limiter, _ := pglimit.New(noDB{}, pglimittest.Memory(), pglimit.Config{Name: "uploads", Limit: pglimit.PerHour(100)})
	d, _ := limiter.AllowN(context.Background(), "user:42", 80)
	fmt.Println(d.Allowed, d.Granted)
	d, _ = limiter.AllowN(context.Background(), "user:42", 30) // all or nothing
	fmt.Println(d.Allowed, d.Granted, d.Remaining)
	_, err := limiter.AllowN(context.Background(), "user:42", 101)
	fmt.Println(err)
	// Output:
	// true 80
	// false 0 20
	// pglimit: Request.Tokens is 101: more than the burst of 100 (100/1h) could never be granted
}

func ExampleLimiter_Peek() {
	limiter, _ := pglimit.New(noDB{}, pglimittest.Memory(), pglimit.Config{Name: "api", Limit: pglimit.PerMinute(5)})
	for range 2 {
		d, _ := limiter.Peek(context.Background(), "user:42")
		fmt.Println(d.Allowed, d.Granted, d.Remaining)
	}
	// Output:
	// true 0 5
	// true 0 5
}

func ExampleLimit() {
	for _, limit := range []pglimit.Limit{
		pglimit.PerSecond(10),
		pglimit.PerSecond(10).WithBurst(20),
		pglimit.Every(3 * time.Second),
		{Tokens: 500, Period: 24 * time.Hour, Burst: 50},
	} {
		fmt.Printf("%v: %d at once\n", limit, limit.Burst)
	}
	fmt.Println(pglimit.PerSecond(0).Validate())
	// Output:
	// 10/1s: 10 at once
	// 10/1s burst 20: 20 at once
	// 1/3s: 1 at once
	// 500/24h burst 50: 50 at once
	// pglimit: Limit.Tokens is 0: it must be at least 1
}

func ExampleLimit_Token() {
	limit := pglimit.PerSecond(3).WithBurst(6)
	fmt.Println("a token is back after", limit.Token(), "and an empty bucket full after", limit.Window())
	// Output: a token is back after 333.333334ms and an empty bucket full after 2.000000004s
}

func ExampleParseLimit() {
	for _, text := range []string{"100/1m burst 20", "10/s", "5/day", "10 per second"} {
		limit, err := pglimit.ParseLimit(text)
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println(limit)
	}
	// Output:
	// 100/1m burst 20
	// 10/1s
	// 5/24h
	// pglimit: limit "10 per second": it must be tokens/period, then perhaps "from 15", "fixed" or a time zone such as Europe/Berlin, then perhaps "burst 20" (write it like "100/1m burst 20")
}

func ExampleFailOpen() {
	limiter, _ := pglimit.New(noDB{}, unreachable(), pglimit.Config{
		Name:    "search",
		Limit:   pglimit.PerSecond(10),
		OnError: pglimit.FailOpen, // better too many searches than none
	})
	d, err := limiter.Allow(context.Background(), "user:42")
	fmt.Println(d.Allowed, err)
	fmt.Println("decided by Postgres:", !d.At.IsZero())
	// Output:
	// true <nil>
	// decided by Postgres: false
}

// A fallback of one's own: log, then do as FailClosed.
func ExampleConfig_onError() {
	limiter, _ := pglimit.New(noDB{}, unreachable(), pglimit.Config{
		Name:    "password-reset",
		Limit:   pglimit.PerHour(3),
		Timeout: 500 * time.Millisecond,
		OnError: func(ctx context.Context, request pglimit.Request, err error) (pglimit.Decision, error) {
			fmt.Printf("%s %s: %v\n", request.Limiter, request.Key, err)
			return pglimit.FailClosed(ctx, request, err)
		},
	})
	d, err := limiter.Allow(context.Background(), "user:42")
	fmt.Println(d.Allowed, err)
	// Output:
	// password-reset user:42: connection refused
	// false <nil>
}
