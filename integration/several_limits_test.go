package integration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// Limits of every kind, in a transaction, are all or nothing: each takes what all of them grant, and no more. So the
// tightest, wherever it stands, is what all have taken.
func TestLimitsOfSeveralKindsAreAllOrNothing(t *testing.T) {
	t.Parallel()
	pools := twoPools(t, newMigrated(t), 20)
	kinds := []struct {
		strategy strategies.Strategy
		limit    pglimit.Limit
	}{
		{strategies.TokenBucket{}, pglimit.PerYear(100)},
		{strategies.TokenBucket{}, pglimit.Every(24 * time.Hour)},
		{strategies.SlidingWindow{}, pglimit.Every(24 * time.Hour)},
		{strategies.SlidingLog{}, pglimit.Every(24 * time.Hour)},
		{strategies.Upsert{}, pglimit.Every(24 * time.Hour)},
		{strategies.WarmUp{}, pglimit.PerSecond(1e9)}, // grants all: the others are slower
	}
	const tightest, others = 3, 5
	for tight := range len(kinds) - 1 {
		key := fmt.Sprint("tightest is ", tight)
		var limiters [2][]*pglimit.Limiter
		for i, kind := range kinds {
			limit := kind.limit.WithBurst(others)
			if i == tight {
				limit = kind.limit.WithBurst(tightest)
			}
			for p, pool := range pools {
				limiters[p] = append(limiters[p], newLimiter(t, pool, kind.strategy, pglimit.Config{Name: fmt.Sprint("kind", i), Limit: limit}))
			}
		}
		var granted int
		var mu sync.Mutex
		var callers sync.WaitGroup
		for caller := range 16 {
			callers.Go(func() {
				d, err := eachKind(t.Context(), pools[caller%2], limiters[caller%2], key)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					t.Errorf("%s: %v", key, err)
				} else if d.Allowed {
					granted++
				}
			})
		}
		callers.Wait()
		if granted != tightest {
			t.Errorf("%s: %d of 16 callers were granted a token of each limit; want %d", key, granted, tightest)
		}
		for i, limiter := range limiters[0][:len(kinds)-1] {
			d, err := limiter.Peek(t.Context(), key)
			must(t, err)
			if left := limiter.Limit().Burst - tightest; d.Remaining != left {
				t.Errorf("%s: kind %d has %d tokens left; want %d", key, i, d.Remaining, left)
			}
		}
	}
}

// eachKind takes a token from each of the limiters, or from none.
func eachKind(ctx context.Context, pool *pgxpool.Pool, limiters []*pglimit.Limiter, key string) (d pglimit.Decision, err error) {
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		for _, limiter := range limiters { // in one order everywhere, so that calls wait for each other and do not deadlock
			if d, err = limiter.On(pglimit.InTx(tx)).Allow(ctx, key); err != nil || !d.Allowed {
				return cmp.Or(err, errDenied) // rolls back
			}
		}
		return nil
	})
	if errors.Is(err, errDenied) {
		err = nil
	}
	return d, err
}
