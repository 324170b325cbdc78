package integration

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
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
	cleanupExec(t, pool, "drop table pglimit.exclusion_range cascade")
	report := cleanupRunOnce(t, pool, cleanup.Config{})
	if len(report.Strategies) != len(strategies.All())-1 {
		t.Errorf("got %+v, want all others", report.Strategies)
	}
}

// Peeks before and after a sweep tell of the same bucket, for each of many in
// random states: full for long, just full, half full, empty.
func TestCleanupIsLossless(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	for _, strategy := range strategies.All() {
		t.Run(strategy.Name(), func(t *testing.T) {
			t.Parallel()
			seed := uint64(time.Now().UnixNano())
			random := rand.New(rand.NewPCG(seed, 0))
			peeks := make([]pglimit.Request, 200)
			for i := range peeks {
				limit := pglimit.Every(time.Duration(1+random.IntN(20_000)) * time.Millisecond)
				if many := limit.WithBurst(1 + random.Int64N(10)); strategy.Check(&pglimit.Request{Limit: many}) == nil {
					limit = many
				}
				peeks[i] = pglimit.Request{Limiter: "lossless", Key: fmt.Sprint("key ", i), Limit: limit, Unit: 1}
			}
			var removed, kept int64
			for round := range 6 {
				for _, peek := range peeks {
					if random.IntN(2) == 0 {
						peek.Tokens = 1 + random.Int64N(peek.Limit.Burst)
						cleanupTake(t, pool, strategy, peek)
					}
				}
				// A row stays for a minute after its bucket is full: each second round
				// is past that.
				age := time.Duration(random.Int64N(int64(20 * time.Second)))
				if round%2 == 1 {
					age += time.Minute
				}
				cleanupAge(t, pool, strategy, age)
				before := cleanupTake(t, pool, strategy, peeks...)
				removed += cleanupSweep(t, pool, strategy, 1+random.IntN(200))
				kept += cleanupRows(t, pool, strategy)
				after := cleanupTake(t, pool, strategy, peeks...)
				for i, b := range before {
					a := after[i]
					fullBefore, fullAfter := b.At.Add(b.ResetAfter), a.At.Add(a.ResetAfter)
					if b.ResetAfter > 0 && a.At.Before(fullBefore) && !fullAfter.Equal(fullBefore) {
						t.Errorf("seed %d, round %d, %s at %v: full at %v before the sweep, at %v after it", seed, round, peeks[i].Key, peeks[i].Limit, fullBefore, fullAfter)
					}
					if b.ResetAfter == 0 && a.ResetAfter != 0 {
						t.Errorf("seed %d, round %d, %s at %v: full before the sweep, not after it", seed, round, peeks[i].Key, peeks[i].Limit)
					}
				}
			}
			if removed == 0 || kept == 0 {
				t.Errorf("seed %d: %d rows were removed and %d kept: this says nothing", seed, removed, kept)
			}
		})
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
									d := cleanupTake(t, pool, strategy, request(key))[0]
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
				cleanupAge(t, pool, strategy, 10*time.Hour) // full, for long
			}
			if removed == 0 {
				t.Error("nothing was removed: this says nothing")
			}
		})
	}
}

// A row that somebody holds is left for the next time, without waiting.
func TestCleanupPassesOverLockedRows(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	for _, strategy := range strategies.All() {
		t.Run(strategy.Name(), func(t *testing.T) {
			t.Parallel()
			for _, key := range []string{"free", "held", "in use"} {
				cleanupTake(t, pool, strategy, pglimit.Request{Limiter: "locked", Key: key, Limit: pglimit.Every(time.Minute), Tokens: 1, Unit: 1})
			}
			cleanupExec(t, pool, "delete from pglimit."+strategy.Name()+" where key = 'in use'")
			cleanupAge(t, pool, strategy, time.Hour)
			cleanupTake(t, pool, strategy, pglimit.Request{Limiter: "locked", Key: "in use", Limit: pglimit.Every(time.Minute), Tokens: 1, Unit: 1})

			tx, err := pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback(context.Background()) }()
			if _, err := tx.Exec(t.Context(), "select from pglimit."+strategy.Name()+" where key = 'held' for key share"); err != nil {
				t.Fatal(err)
			}
			// Waiting for the row would not end before cleanupSweep's deadline.
			if n := cleanupSweep(t, pool, strategy, 1000); n != 1 {
				t.Errorf("while one of two expired rows is locked: removed %d, want 1", n)
			}
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			if n := cleanupSweep(t, pool, strategy, 1000); n != 1 {
				t.Errorf("when it is not: removed %d, want 1", n)
			}
			if n := cleanupInt(t, pool, "select count(*) from pglimit."+strategy.Name()+" where key = 'in use'"); n != 1 {
				t.Errorf("of the bucket that is not full %d rows are left, want 1", n)
			}
		})
	}
}

func TestCleanupOfManyRowsWhileTakesGoOn(t *testing.T) {
	t.Parallel()
	const each = 5_000
	pool := newMigrated(t)
	for _, table := range []string{"token_bucket", "for_update_nowait", "upsert"} {
		cleanupExec(t, pool, `insert into pglimit.`+table+` (key, limiter, full_ns, token_ns, at_ns)
			select 'expired ' || i, 'many', 1000, 1000, 1 from generate_series(1, $1::int) i`, each)
	}
	cleanupExec(t, pool, `insert into pglimit.exclusion_range (key, limiter, during)
		select 'expired ' || i, 'many', tstzrange(now() - interval '2 hours', now() - interval '1 hour') from generate_series(1, $1::int) i`, each)
	for _, table := range []string{"sliding_window", "sliding_log"} {
		cleanupExec(t, pool, `insert into pglimit.`+table+` (key, limiter, used, last_ns, window_ns, full_ns, at_ns)
			select 'expired ' || i, 'many', '{1}', '{1}', '{999}', 1000, 1 from generate_series(1, $1::int) i`, each)
	}

	cleanupExec(t, pool, `insert into pglimit.warm_up (key, limiter, full_ns, free_ns, due_ns, tokens, period_ns, at_ns)
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
				cleanupTake(t, pool, strategy, pglimit.Request{Limiter: "used", Key: fmt.Sprint("key ", i%1000), Limit: pglimit.Every(time.Hour), Tokens: 1, Unit: 1})
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
		if n := cleanupInt(t, pool, "select count(*) from pglimit."+strategy.Name()+" where limiter = 'many'"); n != 0 {
			t.Errorf("%s: %d expired rows are left", strategy.Name(), n)
		}
		if n := cleanupRows(t, pool, strategy); n == 0 {
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

func cleanupTake(t *testing.T, db database, strategy strategies.Strategy, requests ...pglimit.Request) []pglimit.Decision {
	t.Helper()
	decisions, err := taken(db, func() ([]pglimit.Decision, error) { return strategy.Take(t.Context(), on(db), requests) })
	if err != nil {
		t.Errorf("%s: take: %v", strategy.Name(), err)
		return make([]pglimit.Decision, len(requests))
	}
	return decisions
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

// cleanupAge makes the strategy's rows older, as if so much time had passed.
func cleanupAge(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy, d time.Duration) {
	t.Helper()
	if strategy.Name() == "exclusion_range" {
		// Not by an update, in which a range would meet the one before it, not yet
		// moved: the sort has all of them deleted first.
		cleanupExec(t, pool, `
			with old as (delete from pglimit.exclusion_range returning *)
			insert into pglimit.exclusion_range (key, limiter, during)
			select key, limiter, tstzrange(lower(during) - $1::interval, upper(during) - $1::interval) from old order by during`, d)
		return
	}
	age(t, pool, strategy, d)
}

func cleanupRows(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy) int64 {
	t.Helper()
	return cleanupInt(t, pool, "select count(*) from pglimit."+strategy.Name())
}
