package bench

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/scenario"
	"github.com/pglimit/ratelimit/pglimit"
)

// stubborn leases tokens and does not take them back.
type stubborn struct {
	fake

	settling func()
}

func (s stubborn) Lease(_ context.Context, _ pglimit.Session, r pglimit.LeaseRequest) (pglimit.Lease, error) {
	if r.Settle.Tokens > 0 {
		s.settling()
		return pglimit.Lease{}, errors.New("keep it")
	}
	return pglimit.Lease{Tokens: 1000, At: time.Now(), Until: time.Now().Add(r.TTL)}, nil
}

// Leases are given back while there is a pool to do it by; that they could not be is
// heard of.
func TestInstanceGivesLeasesBackBeforeItsPoolCloses(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), "host="+t.TempDir()) // where there is no server
	if err != nil {
		t.Fatal(err)
	}
	isClosed := func() bool {
		_, err := pool.Acquire(t.Context())
		return strings.Contains(err.Error(), "closed pool")
	}
	settled := 0
	strategy := stubborn{
		fake: fake{name: "stubborn", take: func(_ context.Context, r pglimit.Request) (pglimit.Decision, error) {
			return pglimit.Decision{Allowed: true, Granted: r.Tokens, At: time.Now()}, nil
		}},
		settling: func() {
			if settled++; isClosed() {
				t.Error("the pool is closed already")
			}
		},
	}
	c := bareScenario()
	c.Stages.Leases, c.Stages.LeaseTTL = true, 10*time.Second
	limiter, err := pglimit.New(pool, strategy, c.Limiter("stubborn", scenario.Subject{Strategy: strategy, Limit: pglimit.PerSecond(1000)}))
	if err != nil {
		t.Fatal(err)
	}
	for limiter.Stats().Allowed[pglimit.FromLease] == 0 { // a busy key
		if _, err := limiter.Allow(t.Context(), "key"); err != nil {
			t.Fatal(err)
		}
	}
	err = instance{pool, limiter}.close(t.Context())
	if err == nil || !strings.Contains(err.Error(), "keep it") || settled != 1 {
		t.Errorf("%v, after %d leases were given back; want that the one could not be", err, settled)
	}
	if !isClosed() {
		t.Error("the pool is open still")
	}
}
