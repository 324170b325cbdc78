package integration

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
)

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

func lease(t testing.TB, pool *pgxpool.Pool, limit pglimit.Limit, tokens, share int64, settle pglimit.Lease, spent int64) pglimit.Lease {
	t.Helper()
	got, err := (strategies.TokenBucket{}).Lease(t.Context(), on(pool), pglimit.LeaseRequest{
		Limiter: "test", Key: "k", Limit: limit, Tokens: tokens, Share: share, TTL: time.Hour, Settle: settle, Spent: spent,
	})
	must(t, err)
	return got
}

// exclusion_range cannot keep a burst, and refuses it whatever it is asked, also beside
// requests that are good.
func TestExclusionRangeRefusesABurst(t *testing.T) {
	t.Parallel()
	pool, s := newMigrated(t), strategies.ExclusionRange{}
	burst, good := hours.WithBurst(2), ask("k", hours, 1, 1)
	for name, call := range map[string]func() error{
		"a take": func() error {
			_, err := s.Take(t.Context(), on(pool), []rate.Request{good, ask("l", burst, 1, 1)})
			return err
		},
		"a peek": func() error {
			_, err := s.Take(t.Context(), on(pool), []rate.Request{ask("k", burst, 0, 1)})
			return err
		},
		"a refund": func() error {
			return s.GiveBack(t.Context(), on(pool), []pglimit.Refund{{Request: ask("k", burst, 1, 1), At: time.Now()}})
		},
		"a limiter": func() error {
			_, err := pglimit.New(pool, s, pglimit.Config{Name: "test", Limit: burst})
			return err
		},
	} {
		var bad *pglimit.LimitError
		if err := call(); !errors.As(err, &bad) || bad.Field != "Burst" {
			t.Errorf("%s: the error is %v", name, err)
		}
	}
	if !take(t, pool, s, "k", hours).Allowed {
		t.Error("a call that was refused took")
	}
}
