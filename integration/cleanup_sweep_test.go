package integration

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/cleanup"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// Where btree_gist is not to be had, there is one strategy less.
func TestCleanupPassesOverAStrategyThatIsNotInstalled(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	execute(t, pool, "drop table pglimit.exclusion_range cascade")
	report := cleanupRunOnce(t, pool, cleanup.Config{})
	if len(report.Strategies) != len(strategies.All())-1 {
		t.Errorf("got %+v, want all others", report.Strategies)
	}
}

// Buckets that are full are taken from while their rows are being removed: each
// grants its burst and not one more or less.
func TestCleanupAndTakesOfTheSameRows(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	for _, strategy := range strategies.All() {
		t.Run(strategy.Name(), func(t *testing.T) {
			t.Parallel()
			limit := inParts(strategy, pglimit.Every(time.Hour).WithBurst(3))
			const keys, callers = 40, 4
			request := func(key int) pglimit.Request {
				return pglimit.Request{Limiter: "same rows", Key: fmt.Sprint("key ", key), Limit: limit, Tokens: 1, Unit: 1}
			}
			var removed int64
			for round := 0; round < 3 || removed == 0 && round < 100; round++ { // on a busy machine the takes may be faster
				granted := make([]atomic.Int64, keys)
				var taking sync.WaitGroup
				for range callers {
					taking.Go(func() {
						for key := range keys {
							for range limit.Burst {
								for {
									d := takeAll(t, pool, strategy, request(key))[0]
									granted[key].Add(d.Granted)
									if !d.Contended {
										break
									}
								}
							}
						}
					})
				}
				taken := make(chan struct{})
				go func() { taking.Wait(); close(taken) }()
				for swept := false; !swept; {
					select {
					case <-taken:
						swept = true
					default:
						removed += cleanupSweep(t, pool, strategy, 40)
					}
				}
				for key := range granted {
					if n := granted[key].Load(); n != limit.Burst {
						t.Errorf("round %d: key %d got %d tokens, want %d", round, key, n, limit.Burst)
					}
				}
				age(t, pool, strategy, 10*time.Hour) // full, for long
			}
			if removed == 0 {
				t.Error("nothing was removed: this says nothing")
			}
		})
	}
}

func TestCleanupOfManyRowsWhileTakesGoOn(t *testing.T) {
	t.Parallel()
	const each = 5_000
	pool := newMigrated(t)
	for _, table := range []string{"token_bucket", "for_update_nowait", "upsert"} {
		execute(t, pool, `insert into pglimit.`+table+` (key, limiter, full_ns, token_ns, at_ns)
			select 'expired ' || i, 'many', 1000, 1000, 1 from generate_series(1, $1::int) i`, each)
	}
	execute(t, pool, `insert into pglimit.exclusion_range (key, limiter, during)
		select 'expired ' || i, 'many', tstzrange(now() - interval '2 hours', now() - interval '1 hour') from generate_series(1, $1::int) i`, each)
	for _, table := range []string{"sliding_window", "sliding_log"} {
		execute(t, pool, `insert into pglimit.`+table+` (key, limiter, used, last_ns, window_ns, full_ns, at_ns)
			select 'expired ' || i, 'many', '{1}', '{1}', '{999}', 1000, 1 from generate_series(1, $1::int) i`, each)
	}

	execute(t, pool, `insert into pglimit.warm_up (key, limiter, full_ns, free_ns, due_ns, tokens, period_ns, at_ns)
		select 'expired ' || i, 'many', 1000, 999, 1, 1, 999, 1 from generate_series(1, $1::int) i`, each)

	swept := make(chan struct{})
	var takes atomic.Int64
	var taking sync.WaitGroup
	for _, strategy := range strategies.All() {
		taking.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-swept:
					return
				default:
				}
				takeAll(t, pool, strategy, pglimit.Request{Limiter: "used", Key: fmt.Sprint("key ", i%1000), Limit: pglimit.Every(time.Hour), Tokens: 1, Unit: 1})
				takes.Add(1)
			}
		})
	}
	report := cleanupRunOnce(t, pool, cleanup.Config{Pause: time.Millisecond})
	during := takes.Load()
	close(swept)
	taking.Wait()

	all := int64(each * len(strategies.All()))
	if report.Removed != all || report.Batches < int(all)/2000 {
		t.Errorf("got %d rows removed in %d batches, want all %d, about 1000 at a time", report.Removed, report.Batches, all)
	}
	for _, strategy := range strategies.All() {
		if n := query[int64](t, pool, "select count(*) from pglimit."+strategy.Name()+" where limiter = 'many'"); n != 0 {
			t.Errorf("%s: %d expired rows are left", strategy.Name(), n)
		}
		if n := rowsIn(t, pool, strategy); n == 0 {
			t.Errorf("%s: the rows in use are gone", strategy.Name())
		}
	}
	if during == 0 {
		t.Error("no take went on meanwhile")
	}
	t.Logf("%d rows in %v, %d takes meanwhile", report.Removed, report.Duration, during)
	cleanupNoLocks(t, pool)
}

func cleanupRunOnce(t *testing.T, pool *pgxpool.Pool, config cleanup.Config) cleanup.Report {
	t.Helper()
	config.Logger = slog.New(slog.DiscardHandler)
	c, err := cleanup.New(pool, strategies.All(), config)
	if err != nil {
		t.Fatal(err)
	}
	report, err := c.RunOnce(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// cleanupSweep walks the whole table once.
func cleanupSweep(t *testing.T, db database, strategy strategies.Strategy, limit int) (removed int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var swept pglimit.Swept
	for !swept.Done {
		var err error
		if swept, err = strategy.Sweep(ctx, on(db), swept.Next, limit); err != nil {
			t.Fatalf("%s: sweep: %v", strategy.Name(), err)
		}
		removed += swept.Removed
	}
	return removed
}
