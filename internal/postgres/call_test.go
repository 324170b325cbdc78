package postgres

import (
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"pgregory.net/rapid"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

func TestLockOrderIsOneForAllCalls(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		requests := rapid.SliceOf(rapid.Custom(func(t *rapid.T) rate.Request {
			return rate.Request{Key: rapid.StringN(0, 3, 6).Draw(t, "key"), Limiter: rapid.StringN(0, 2, 4).Draw(t, "limiter")}
		})).Draw(t, "requests")
		order := Order(requests)
		seen := make(map[int]bool)
		for place, i := range order {
			seen[i] = true
			if place == 0 {
				continue
			}
			before, after := requests[order[place-1]], requests[i]
			same := before.Key == after.Key && before.Limiter == after.Limiter
			if before.Key > after.Key || before.Key == after.Key && before.Limiter > after.Limiter || same && order[place-1] > i {
				t.Fatalf("%v before %v", before, after)
			}
		}
		if len(seen) != len(requests) {
			t.Fatalf("%d of %d requests", len(seen), len(requests))
		}
	})
}

// What Postgres says of a lock_timeout that ends just when the lock is granted is no reason to give
// up, nor is a deadlock, or a shard that moves. A statement_timeout is.
func TestAfterWhichErrorsTheNextTryMaySucceed(t *testing.T) {
	t.Parallel()
	for want, errs := range map[bool][]pgconn.PgError{
		true: {
			{Code: "40001"}, {Code: "40P01"}, {Code: "57014", Message: "canceling statement due to user request"},
			{Code: "XX000", Message: "cannot execute a distributed query from a query on a shard"},
		},
		false: {
			{Code: "57014", Message: "canceling statement due to statement timeout"}, {Code: "55P03", Message: "canceling statement due to lock timeout"},
			{Code: "42P01"}, {Code: "XX000"}, {Code: "57P01", Message: "terminating connection due to administrator command"},
		},
	} {
		for i := range errs {
			if passes(&errs[i]) != want {
				t.Errorf("%v: want %v", &errs[i], want)
			}
		}
	}
}
