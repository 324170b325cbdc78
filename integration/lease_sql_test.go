package integration

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

func lease(t testing.TB, pool *pgxpool.Pool, limit pglimit.Limit, tokens, share int64, settle pglimit.Lease, spent int64) pglimit.Lease {
	t.Helper()
	got, err := (strategies.TokenBucket{}).Lease(t.Context(), on(pool), pglimit.LeaseRequest{
		Limiter: "test", Key: "k", Limit: limit, Tokens: tokens, Share: share, TTL: time.Hour, Settle: settle, Spent: spent,
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}
