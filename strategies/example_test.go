package strategies_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
)

func ExampleByName() {
	strategy, err := strategies.ByName("token_bucket")
	fmt.Printf("%T %v\n", strategy, err)
	// Output: strategies.TokenBucket <nil>
}

func ExampleExclusionRange_Check() {
	fmt.Println(strategies.ExclusionRange{}.Check(&rate.Request{Limit: rate.Every(3 * time.Second)}))
	fmt.Println(strategies.ExclusionRange{}.Check(&rate.Request{Limit: rate.PerSecond(10)}))
	// Output:
	// <nil>
	// pglimit: Limit.Burst is 10: exclusion_range keeps a burst of 1 only (use a burst of 1, or another strategy)
}

// Several keys in one round trip: a limit for the user, and one for the tenant.
func ExampleTokenBucket_Take() {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, "postgres://localhost/app")
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close(ctx) //nolint:errcheck // nothing is lost

	decisions, err := strategies.TokenBucket{}.Take(ctx, pglimit.OnConn(conn), []rate.Request{
		{Limiter: "users", Key: "user:42", Limit: rate.PerSecond(10), Tokens: 1, Unit: 1},
		{Limiter: "tenants", Key: "tenant:7", Limit: rate.PerMinute(10_000), Tokens: 1, Unit: 1},
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(decisions[0].Allowed, decisions[1].Allowed)
}

// A take in a transaction is undone with it: a job that could not be queued costs
// nothing.
func ExampleTokenBucket_Take_transaction() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://localhost/app")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()

	errDenied := errors.New("come back later")
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		decisions, err := strategies.TokenBucket{}.Take(ctx, pglimit.InTx(tx), []rate.Request{
			{Limiter: "jobs", Key: "user:42", Limit: rate.PerHour(100), Tokens: 1, Unit: 1},
		})
		if err != nil {
			return err
		}
		if !decisions[0].Allowed {
			return errDenied
		}
		_, err = tx.Exec(ctx, "insert into jobs (owner) values ($1)", "user:42")
		return err
	})
	fmt.Println(err)
}
