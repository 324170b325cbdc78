package integration

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/cleanup"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// Of three instances that all tick at the same moment, one runs each tick.
func TestCleanupOneOfThreeSchedulersRunsEachTick(t *testing.T) {
	t.Parallel()
	const interval, slack = 500 * time.Millisecond, 50 * time.Millisecond
	pool := newMigrated(t)
	cleanupExec(t, pool, `
		create table public.claims (at timestamptz default clock_timestamp());
		create table public.runs (began timestamptz, ended timestamptz);
		create function public.log_claim() returns trigger language plpgsql as
			'begin insert into public.claims default values; return null; end';
		create trigger log_claim after insert or update on pglimit.schedule for each row execute function public.log_claim()`)

	ran := make(chan cleanup.Report, 100)
	locked := &cleanupLog{message: "leaves this run to others", err: cleanup.ErrLocked, seen: make(chan struct{}, 100)}
	var cleaners []*cleanup.Cleaner
	for range 3 {
		cleaners = append(cleaners, cleanupStart(t, cleanupPool(t, pool), cleanup.Config{
			Interval: interval,
			Logger:   slog.New(locked),
			OnRun:    func(r cleanup.Report) { ran <- r },
		}, cleanupProbe{}))
	}
	for range 6 {
		if r := cleanupWithin(t, "a run", ran); r.Err != nil || len(r.Strategies) != 1 {
			t.Fatalf("a run went wrong: %+v", r)
		}
	}
	// Between two claims, so that none is cut short.
	for _, c := range cleaners {
		cleanupStop(t, c)
	}
	cleanupNoLocks(t, pool)

	claims := cleanupInt(t, pool, "select count(*) from public.claims")
	runs := cleanupInt(t, pool, "select count(*) from public.runs")
	if runs < 6 || claims-runs-int64(len(locked.seen)) > 1 || runs > claims { // 1: claimed when it was stopped
		t.Errorf("%d ticks were claimed, of which %d found a run under way, and %d were run", claims, len(locked.seen), runs)
	}
	early := cleanupInt(t, pool, `
		select count(*) from (select at - lag(at) over (order by at) as distance from public.claims) c
		where distance < make_interval(secs => $1)`, (interval - slack).Seconds())
	if early != 0 {
		t.Errorf("%d ticks were claimed less than %v after the one before", early, interval-slack)
	}
	meeting := cleanupInt(t, pool, "select count(*) from public.runs a join public.runs b on a.ctid < b.ctid and a.began < b.ended and b.began < a.ended")
	if meeting != 0 {
		t.Errorf("%d pairs of runs met", meeting)
	}
}

// An instance that dies in the middle of a sweep takes its lock along, and
// another goes on.
func TestCleanupTakesOverFromAKilledInstance(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	child, say := cleanupChild(t, pool, "sweep")
	cleanupHears(t, say, "sweeping")

	locked := &cleanupLog{message: "leaves this run to others", err: cleanup.ErrLocked, seen: make(chan struct{}, 100)}
	ran := make(chan cleanup.Report, 100)
	c := cleanupStart(t, pool, cleanup.Config{
		Interval: 100 * time.Millisecond,
		Logger:   slog.New(locked),
		OnRun:    func(r cleanup.Report) { ran <- r },
	}, strategies.All()...)
	cleanupWithin(t, "it finds the other's lock", locked.seen)
	if len(ran) != 0 {
		t.Fatal("it runs while another does")
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if r := cleanupWithin(t, "it takes over", ran); r.Err != nil || len(r.Strategies) != 4 {
		t.Errorf("the run after: %+v", r)
	}
	cleanupStop(t, c)
	cleanupNoLocks(t, pool)
}

// An instance whose machine vanishes leaves a connection that nobody closes. A
// stopped process looks the same from the server.
func TestCleanupLockOfASilentHolderGoes(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	child, say := cleanupChild(t, pool, "hold")
	cleanupHears(t, say, "holding")
	if err := child.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	// Waits until the lock is free.
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := pool.Exec(ctx, "select pg_advisory_xact_lock(hashtextextended('pglimit child', 0))"); err != nil {
		t.Errorf("the lock is still held: %v", err)
	}
}

// TestCleanupChild is not a test but the other process of the two above.
func TestCleanupChild(t *testing.T) {
	task, url, ok := strings.Cut(os.Getenv("PGLIMIT_TEST_CLEANUP_CHILD"), " ")
	if !ok {
		t.Skip("runs as a child of other tests")
	}
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	switch task {
	case "sweep":
		cleanupStart(t, pool, cleanup.Config{}, cleanupEndless{})
	case "hold":
		locker, err := cleanup.NewLocker(pool, cleanup.LockerConfig{Heartbeat: 250 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := locker.Lock(t.Context(), "child"); err != nil {
			t.Fatal(err)
		}
		fmt.Println("holding")
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // until the parent is gone
	os.Exit(1)
}

// The ledger is by the database's clock, so time passes here by moving the row.
func TestCleanupLedger(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	newLocker := func(interval time.Duration) *cleanup.Locker {
		locker, err := cleanup.NewLocker(pool, cleanup.LockerConfig{Interval: interval})
		if err != nil {
			t.Fatal(err)
		}
		return locker
	}
	hourly, minutely := newLocker(time.Hour), newLocker(time.Minute)
	passes := func(d time.Duration) {
		cleanupExec(t, pool, "update pglimit.schedule set ran_at = ran_at - $1::interval, due_at = due_at - $1::interval", d)
	}
	runs := func(when string, locker *cleanup.Locker, want error) {
		t.Helper()
		lock, err := locker.Lock(t.Context(), "job")
		if !errors.Is(err, want) || err == nil && want != nil {
			t.Errorf("%s: got %v, want %v", when, err, want)
		}
		if err == nil {
			if err := lock.Unlock(t.Context()); err != nil {
				t.Errorf("%s: Unlock: %v", when, err)
			}
		}
	}
	runs("the first time", hourly, nil)
	runs("another instance, whose clock is a little behind", hourly, cleanup.ErrNotDue)
	passes(53 * time.Minute)
	runs("another, whose clock is far behind", hourly, cleanup.ErrNotDue)
	passes(2 * time.Minute)
	runs("the next time, a little early", hourly, nil)
	runs("and only once", hourly, cleanup.ErrNotDue)
	passes(-24 * time.Hour)
	runs("after the database's clock stepped back", hourly, nil)
	runs("and only once", hourly, cleanup.ErrNotDue)
	runs("after the interval was shortened", minutely, nil)
	runs("and only once", minutely, cleanup.ErrNotDue)

	// Neither written nor locked: the lock of an upsert would show in xmax.
	row := func() (state string) {
		if err := pool.QueryRow(t.Context(), "select concat_ws(' ', ctid, xmin, xmax) from pglimit.schedule").Scan(&state); err != nil {
			t.Fatal(err)
		}
		return state
	}
	before := row()
	runs("a run that is not due", minutely, cleanup.ErrNotDue)
	if after := row(); after != before {
		t.Errorf("asking for a run that is not due left a trace: the row was %s, is %s", before, after)
	}
}

func TestCleanupLockerIsAGocronLocker(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	ran := make(chan string, 100)
	for range 3 {
		locker, err := cleanup.NewLocker(cleanupPool(t, pool), cleanup.LockerConfig{Interval: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		asked := cleanupAsked{locker, make(chan error, 100)}
		scheduler, err := gocron.NewScheduler(gocron.WithDistributedLocker(asked))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = scheduler.Shutdown() })
		for _, name := range []string{"a", "b"} {
			_, err := scheduler.NewJob(gocron.DurationJob(50*time.Millisecond), gocron.NewTask(func() { ran <- name }), gocron.WithName(name))
			if err != nil {
				t.Fatal(err)
			}
		}
		scheduler.Start()
		for range 6 {
			if err := cleanupWithin(t, "gocron asks", asked.answers); err != nil && !errors.Is(err, cleanup.ErrNotDue) {
				t.Errorf("got %v, want no error or ErrNotDue", err)
			}
		}
		if err := scheduler.Shutdown(); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
	}
	close(ran)
	var names []string
	for name := range ran {
		names = append(names, name)
	}
	if slices.Sort(names); !slices.Equal(names, []string{"a", "b"}) {
		t.Errorf("got runs of %v, want one of each job", names)
	}
	cleanupNoLocks(t, pool)
}

// cleanupAsked is a Locker whose answers can be heard.
type cleanupAsked struct {
	gocron.Locker
	answers chan error
}

func (a cleanupAsked) Lock(ctx context.Context, job string) (gocron.Lock, error) {
	lock, err := a.Locker.Lock(ctx, job)
	a.answers <- err
	return lock, err
}

// What a run holds for minutes must cost the others nothing, whatever the defaults
// of the database are.
func TestCleanupLockHoldsBackNobody(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	config := pool.Config()
	config.ConnConfig.RuntimeParams["default_transaction_isolation"] = "serializable"
	config.ConnConfig.RuntimeParams["idle_in_transaction_session_timeout"] = "200ms"
	config.ConnConfig.RuntimeParams["application_name"] = "holder"
	if cleanupInt(t, pool, "select current_setting('server_version_num')::bigint") >= 170000 {
		config.ConnConfig.RuntimeParams["transaction_timeout"] = "200ms"
	}
	holder, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(holder.Close)
	locker, err := cleanup.NewLocker(holder, cleanup.LockerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	lock, err := locker.Lock(t.Context(), "job")
	if err != nil {
		t.Fatal(err)
	}
	if n := cleanupInt(t, pool, `select count(*) from pg_stat_activity
		where application_name = 'holder' and state = 'idle in transaction' and backend_xid is null and backend_xmin is null`); n != 1 {
		t.Errorf("got %d transactions that hold no snapshot and have no id, want the lock's", n)
	}
	cleanupExec(t, pool, "select pg_sleep(0.4)") // longer than the timeouts above: the lock has its own
	if err := lock.Unlock(t.Context()); err != nil {
		t.Errorf("Unlock: %v", err)
	}
	if n := holder.Stat().AcquiredConns(); n != 0 {
		t.Errorf("%d connections are out after Unlock", n)
	}
	cleanupNoLocks(t, pool)
}

func TestCleanupLostLockIsNoticed(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	lost := make(chan error, 1)
	locker, err := cleanup.NewLocker(cleanupPool(t, pool), cleanup.LockerConfig{
		Interval:  time.Millisecond,
		Heartbeat: 10 * time.Millisecond,
		OnLost:    func(_ string, err error) { lost <- err },
	})
	if err != nil {
		t.Fatal(err)
	}
	lock, err := locker.Lock(t.Context(), "job")
	if err != nil {
		t.Fatal(err)
	}
	cleanupExec(t, pool, "select pg_terminate_backend(pid) from pg_locks where "+cleanupAdvisory)
	if err := cleanupWithin(t, "the loss is noticed", lost); !errors.Is(err, cleanup.ErrLost) {
		t.Errorf("OnLost: got %v, want ErrLost", err)
	}
	if err := lock.Unlock(t.Context()); !errors.Is(err, cleanup.ErrLost) {
		t.Errorf("Unlock: got %v, want ErrLost", err)
	}
	if lock, err = locker.Lock(t.Context(), "job"); err != nil {
		t.Fatalf("the next run: %v", err)
	}
	if err := lock.Unlock(t.Context()); err != nil {
		t.Errorf("Unlock: %v", err)
	}
}

func TestCleanupSaysThatTheDatabaseIsNotMigrated(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), newDatabase(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	reports := make(chan cleanup.Report, 1)
	c := cleanupStart(t, pool, cleanup.Config{OnRun: func(r cleanup.Report) { reports <- r }}, strategies.All()...)
	if _, err := c.RunOnce(t.Context()); !errors.Is(err, pglimit.ErrNotMigrated) {
		t.Errorf("RunOnce: got %v, want ErrNotMigrated", err)
	}
	if r := cleanupWithin(t, "the tick is reported", reports); !errors.Is(r.Err, pglimit.ErrNotMigrated) {
		t.Errorf("tick: got %v, want ErrNotMigrated", r.Err)
	}
	cleanupStop(t, c)
}

// Where btree_gist is not to be had, there is one strategy less.
func TestCleanupPassesOverAStrategyThatIsNotInstalled(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	cleanupExec(t, pool, "drop table pglimit.exclusion_range cascade")
	report := cleanupRunOnce(t, pool, cleanup.Config{})
	if len(report.Strategies) != 3 {
		t.Errorf("got %+v, want the three others", report.Strategies)
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
				if many := limit.WithBurst(1 + random.Int64N(10)); strategy.Check(many) == nil {
					limit = many
				}
				peeks[i] = pglimit.Request{Limiter: "lossless", Key: fmt.Sprint("key ", i), Limit: limit, Unit: 1}
			}
			var removed int64
			for round := range 5 {
				for _, peek := range peeks {
					if random.IntN(2) == 0 {
						peek.Tokens = 1 + random.Int64N(peek.Limit.Capacity())
						cleanupTake(t, pool, strategy, peek)
					}
				}
				cleanupAge(t, pool, strategy, time.Duration(random.Int64N(int64(20*time.Second))))
				before := cleanupTake(t, pool, strategy, peeks...)
				removed += cleanupSweep(t, pool, strategy, 1+random.IntN(200))
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
			if left := cleanupRows(t, pool, strategy); removed == 0 || left == 0 {
				t.Errorf("seed %d: %d rows were removed and %d kept: this says nothing", seed, removed, left)
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
			limit := pglimit.Every(time.Hour)
			if many := limit.WithBurst(3); strategy.Check(many) == nil {
				limit = many
			}
			const keys, callers = 40, 4
			request := func(key int) pglimit.Request {
				return pglimit.Request{Limiter: "same rows", Key: fmt.Sprint("key ", key), Limit: limit, Tokens: 1, Unit: 1}
			}
			var removed int64
			for round := range 5 {
				granted := make([]atomic.Int64, keys)
				var taking sync.WaitGroup
				for range callers {
					taking.Go(func() {
						for key := range keys {
							for range limit.Capacity() {
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
					if n := granted[key].Load(); n != limit.Capacity() {
						t.Errorf("round %d: key %d got %d tokens, want %d", round, key, n, limit.Capacity())
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

func TestCleanupOf200000RowsWhileTakesGoOn(t *testing.T) {
	t.Parallel()
	const each = 50_000
	pool := newMigrated(t)
	for _, table := range []string{"token_bucket", "for_update_nowait", "upsert"} {
		extra, value := "", ""
		if table == "upsert" {
			extra, value = ", granted", ", 1"
		}
		cleanupExec(t, pool, `insert into pglimit.`+table+` (key, limiter, debt, at_us, token_parts, refill_parts, burst`+extra+`)
			select 'expired ' || i, 'many', 1000, pglimit.clock_us() - 60000000, 1000, 1, 10`+value+` from generate_series(1, $1::int) i`, each)
	}
	cleanupExec(t, pool, `insert into pglimit.exclusion_range (key, limiter, during)
		select 'expired ' || i, 'many', tstzrange(now() - interval '2 hours', now() - interval '1 hour') from generate_series(1, $1::int) i`, each)

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

	if report.Removed != 4*each || report.Batches < 4*each/2000 {
		t.Errorf("got %d rows removed in %d batches, want all %d, about 1000 at a time", report.Removed, report.Batches, 4*each)
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

// cleanupProbe is a strategy that writes down its runs.
type cleanupProbe struct{ pglimit.Strategy }

func (cleanupProbe) Name() string { return "probe" }

func (cleanupProbe) Sweep(ctx context.Context, db pglimit.DB, _ pglimit.Cursor, _ int) (pglimit.Swept, error) {
	var began time.Time
	if err := db.QueryRow(ctx, "select clock_timestamp()").Scan(&began); err != nil {
		return pglimit.Swept{}, err
	}
	_, err := db.Exec(ctx, "insert into public.runs values ($1, clock_timestamp())", began)
	return pglimit.Swept{Done: true}, err
}

// cleanupEndless is a strategy that never gets through.
type cleanupEndless struct{ pglimit.Strategy }

func (cleanupEndless) Name() string { return "endless" }

func (cleanupEndless) Sweep(_ context.Context, _ pglimit.DB, from pglimit.Cursor, _ int) (pglimit.Swept, error) {
	if from == 0 {
		fmt.Println("sweeping")
	}
	return pglimit.Swept{Next: from + 1}, nil
}

// cleanupLog hears of messages with an error in them.
type cleanupLog struct {
	message string
	err     error
	seen    chan struct{}
}

func (l *cleanupLog) Enabled(context.Context, slog.Level) bool { return true }
func (l *cleanupLog) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *cleanupLog) WithGroup(string) slog.Handler            { return l }

func (l *cleanupLog) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, l.message) {
		r.Attrs(func(a slog.Attr) bool {
			if err, ok := a.Value.Any().(error); ok && errors.Is(err, l.err) {
				l.seen <- struct{}{}
			}
			return true
		})
	}
	return nil
}

func cleanupStart(t *testing.T, pool *pgxpool.Pool, config cleanup.Config, s ...pglimit.Strategy) *cleanup.Cleaner {
	t.Helper()
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	c, err := cleanup.New(pool, s, config)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}

func cleanupStop(t *testing.T, c *cleanup.Cleaner) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := c.Stop(ctx); err != nil {
		t.Errorf("Stop: %v", err)
	}
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

// cleanupPool is one more pool on the same database, as another instance has.
func cleanupPool(t *testing.T, pool *pgxpool.Pool) *pgxpool.Pool {
	t.Helper()
	another, err := pgxpool.NewWithConfig(t.Context(), pool.Config())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(another.Close)
	return another
}

// cleanupChild starts this program again, to do what TestCleanupChild says.
func cleanupChild(t *testing.T, pool *pgxpool.Pool, task string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	child := exec.Command(os.Args[0], "-test.run=^TestCleanupChild$", "-test.v")
	child.Env = append(os.Environ(), "PGLIMIT_TEST_CLEANUP_CHILD="+task+" "+pool.Config().ConnString())
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := child.StdinPipe(); err != nil { // closed when this process ends
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	})
	return child, bufio.NewScanner(out)
}

func cleanupHears(t *testing.T, from *bufio.Scanner, what string) {
	t.Helper()
	var said []string
	for from.Scan() {
		if from.Text() == what {
			return
		}
		said = append(said, from.Text())
	}
	t.Fatalf("the child ended without saying %q: %q", what, said)
}

func cleanupWithin[T any](t *testing.T, what string, events <-chan T) T {
	t.Helper()
	select {
	case event := <-events:
		return event
	case <-time.After(20 * time.Second):
		t.Fatalf("it takes too long until %s", what)
		panic("unreachable")
	}
}

func cleanupTake(t *testing.T, db pglimit.DB, strategy pglimit.Strategy, requests ...pglimit.Request) []pglimit.Decision {
	t.Helper()
	decisions, err := strategy.Take(t.Context(), db, requests)
	if err != nil {
		t.Errorf("%s: take: %v", strategy.Name(), err)
		return make([]pglimit.Decision, len(requests))
	}
	return decisions
}

// cleanupSweep walks the whole table once.
func cleanupSweep(t *testing.T, db pglimit.DB, strategy pglimit.Strategy, limit int) (removed int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var swept pglimit.Swept
	for !swept.Done {
		var err error
		if swept, err = strategy.Sweep(ctx, db, swept.Next, limit); err != nil {
			t.Fatalf("%s: sweep: %v", strategy.Name(), err)
		}
		removed += swept.Removed
	}
	return removed
}

// cleanupAge makes the strategy's rows older, as if so much time had passed.
func cleanupAge(t *testing.T, pool *pgxpool.Pool, strategy pglimit.Strategy, d time.Duration) {
	t.Helper()
	if strategy.Name() == "exclusion_range" {
		cleanupExec(t, pool, "update pglimit.exclusion_range set during = tstzrange(lower(during) - $1::interval, upper(during) - $1::interval)", d)
		return
	}
	cleanupExec(t, pool, "update pglimit."+strategy.Name()+" set at_us = at_us - $1", d.Microseconds())
}

func cleanupRows(t *testing.T, pool *pgxpool.Pool, strategy pglimit.Strategy) int64 {
	t.Helper()
	return cleanupInt(t, pool, "select count(*) from pglimit."+strategy.Name())
}

// cleanupAdvisory picks advisory locks in this database of pg_locks.
const cleanupAdvisory = "locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())"

func cleanupNoLocks(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	if n := cleanupInt(t, pool, "select count(*) from pg_locks where "+cleanupAdvisory); n != 0 {
		t.Errorf("%d locks were left behind", n)
	}
}

func cleanupExec(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func cleanupInt(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) (n int64) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), sql, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return n
}
