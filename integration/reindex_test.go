package integration

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
)

// REINDEX TABLE, again and again, beside takes of one key, of several and of groups, leases, IDs and blocks:
// no deadlock.
func TestReindexDoesNotDeadlockWithTakes(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, admin *pgxpool.Pool, strategy strategies.Strategy) {
		pool := newPool(t, with(databaseURL(admin), "deadlock_timeout", "10ms"), 8)
		limit, block := pglimit.Every(time.Millisecond), pglimit.Block{After: 2, Within: time.Second, For: time.Millisecond, Max: time.Millisecond}
		groups := strategy.Check(&rate.Request{Limit: limit, Group: 1}) == nil // and IDs and blocks
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var work sync.WaitGroup
		for i := range 8 {
			work.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					key := fmt.Sprint(n % 5)
					var err error
					leaser, is := strategy.(pglimit.Leaser)
					switch {
					case groups && i == 6:
						requests := asks(limit, key)
						if n%2 == 0 {
							requests[0].ID, requests[0].IDTTL = fmt.Sprint(n%7), time.Millisecond
						} else {
							requests[0].Block = &block
						}
						_, err = strategy.Take(t.Context(), on(pool), requests)
					case groups && i == 5 && n%3 == 0:
						err = strategy.Reset(t.Context(), on(pool), "test", key)
					case groups && i == 5 && n%3 == 1:
						_, err = strategy.Sweep(t.Context(), on(pool), 0, 1000)
					case groups && i == 7:
						_, err = strategy.Take(t.Context(), on(pool), grouped(asks(limit, key, key+"b", key+"c")))
					case is && i%4 == 0:
						_, err = leaser.Lease(t.Context(), on(pool), pglimit.LeaseRequest{Limiter: "test", Key: key, Limit: limit.WithBurst(10), Tokens: 1, Share: 1, TTL: time.Millisecond})
					case i%4 == 1:
						requests := asks(limit, key, key+"b", key+"c")
						requests[0].Tokens *= int64(n % 2) // a peek, before takes
						_, err = strategy.Take(t.Context(), on(pool), requests)
					default:
						requests := asks(limit, key)
						requests[0].Tokens += int64(i % 2) // as much as there is
						_, err = strategy.Take(t.Context(), on(pool), requests)
					}
					if err != nil && !errors.Is(err, pglimit.ErrNothingTaken) || sqlState(err) == "40P01" {
						t.Error(err)
						return
					}
				}
			})
		}
		tables := []string{strategy.Name()}
		if groups {
			tables = append(tables, "token_bucket_answers", "token_bucket_blocks")
		}
		rounds := 0
		for enough := soon(t, 500*time.Millisecond); enough.Err() == nil || rounds < 2; rounds++ {
			for _, table := range tables {
				if _, err := admin.Exec(t.Context(), "reindex table pglimit."+table); err != nil {
					t.Errorf("reindex: %v", err)
				}
			}
		}
		stop()
		work.Wait()
		if n := finalDeadlocks(t, admin, pool); n > 0 {
			t.Errorf("%d deadlocks in %d rounds", n, rounds)
		}
	})
}

// A take that may write has the table's lock of a write before it reads, also one of more than a burst. The test above
// meets REINDEX between the two too rarely to show it.
func TestATakeLocksTheTableBeforeItReads(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	const takes = "select pglimit.token_bucket_take('k', 'test', 3600000000000, 3600000000000, $1, 1, null)"
	execute(t, pool, takes, 1)
	tx := begin(t, pool)
	execute(t, tx, takes, 5) // nothing is left
	locked := query[bool](t, tx, `select exists (select from pg_locks where pid = pg_backend_pid()
		and relation = 'pglimit.token_bucket'::regclass and mode = 'RowExclusiveLock')`)
	if !locked {
		t.Error("it is not locked")
	}
	must(t, tx.Rollback(t.Context()))
}
