package integration

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// leased is a lease of all the tokens asked for, as long as ttl.
func leased(t *testing.T, pool *pgxpool.Pool, key string, limit pglimit.Limit, tokens int64, ttl time.Duration) pglimit.Lease {
	t.Helper()
	got, err := (strategies.TokenBucket{}).Lease(t.Context(), on(pool), pglimit.LeaseRequest{
		Limiter: "test", Key: key, Limit: limit, Tokens: tokens, Share: 1, TTL: ttl,
	})
	if err != nil || got.Tokens != tokens {
		t.Fatalf("%+v, %v", got, err)
	}
	return got
}

// A lease that sets nothing aside and settles nothing leaves the row as it was written.
func TestALeaseOfNothingWritesNothing(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	limit := hours.WithBurst(5)
	if got := lease(t, pool, limit, 5, 1, pglimit.Lease{}, 0); got.Tokens != 5 {
		t.Fatalf("%+v", got)
	}
	const version = "select ctid::text from pglimit.token_bucket"
	before := query[string](t, pool, version)
	unknown := pglimit.Lease{Tokens: 5, Until: time.Unix(1, 0)}
	for _, settle := range []pglimit.Lease{{}, unknown} {
		if got := lease(t, pool, limit, 5, 1, settle, 0); got.Tokens != 0 {
			t.Fatalf("%+v", got)
		}
	}
	if after := query[string](t, pool, version); after != before {
		t.Errorf("the row was written: it was at %s and is at %s", before, after)
	}
}
