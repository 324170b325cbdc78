package integration

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

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
	execute(t, pool, `
		create table public.claims (at timestamptz);
		create table public.runs (began timestamptz, ended timestamptz);
		create function public.log_claim() returns trigger language plpgsql as
			'begin insert into public.claims values (new.ran_at); return null; end';
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

	claims := query[int64](t, pool, "select count(*) from public.claims")
	runs := query[int64](t, pool, "select count(*) from public.runs")
	if runs < 6 || claims-runs-int64(len(locked.seen)) > int64(len(cleaners)) || runs > claims { // each may have claimed one when it was stopped
		t.Errorf("%d ticks were claimed, of which %d found a run under way, and %d were run", claims, len(locked.seen), runs)
	}
	early := query[int64](t, pool, `
		select count(*) from (select at - lag(at) over (order by at) as distance from public.claims) c
		where distance < make_interval(secs => $1)`, (interval - slack).Seconds())
	if early != 0 {
		t.Errorf("%d ticks were claimed less than %v after the one before", early, interval-slack)
	}
	meeting := query[int64](t, pool, "select count(*) from public.runs a join public.runs b on a.ctid < b.ctid and a.began < b.ended and b.began < a.ended")
	if meeting != 0 {
		t.Errorf("%d pairs of runs met", meeting)
	}
}

// An instance that dies in the middle of a sweep renews its lock no more, and another goes on when it ends.
func TestCleanupTakesOverFromADeadInstance(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	execute(t, pool, "select pglimit.acquire('pglimit.jobs', $1, 1, ttl => '1 hour', holder => 'the dead one')", cleanup.JobName)
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
	execute(t, pool, "delete from pglimit.permits") // the time passes
	if r := cleanupWithin(t, "it takes over", ran); r.Err != nil || len(r.Strategies) != len(strategies.All()) {
		t.Errorf("the run after: %+v", r)
	}
	cleanupStop(t, c)
	cleanupNoLocks(t, pool)
}

// cleanupProbe is a strategy that writes down its runs.
type cleanupProbe struct{ strategies.Strategy }

func (cleanupProbe) Name() string { return "probe" }

func (cleanupProbe) Sweep(ctx context.Context, db pglimit.Session, _ pglimit.Cursor, _ int) (pglimit.Swept, error) {
	var began time.Time
	if err := db.Row(ctx, "select clock_timestamp()", nil, &began); err != nil {
		return pglimit.Swept{}, err
	}
	_, err := db.Exec(ctx, "insert into public.runs values ($1, clock_timestamp())", began)
	return pglimit.Swept{Done: true}, err
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

func (cleanupProbe) GiveBack(context.Context, pglimit.Session, []pglimit.Refund) error { return nil }

func cleanupStart(t *testing.T, pool *pgxpool.Pool, config cleanup.Config, s ...strategies.Strategy) *cleanup.Cleaner {
	t.Helper()
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	c, err := cleanup.New(pool, s, config)
	must(t, err)
	must(t, c.Start(t.Context()))
	return c
}

func cleanupStop(t *testing.T, c *cleanup.Cleaner) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := c.Stop(ctx); err != nil {
		t.Errorf("Stop: %v", err)
	}
}

// cleanupPool is one more pool on the same database, as another instance has.
func cleanupPool(t *testing.T, pool *pgxpool.Pool) *pgxpool.Pool {
	t.Helper()
	another, err := pgxpool.NewWithConfig(t.Context(), pool.Config())
	must(t, err)
	t.Cleanup(another.Close)
	return another
}

func cleanupWithin[T any](t *testing.T, what string, events <-chan T) T {
	t.Helper()
	select {
	case event := <-events:
		return event
	case <-time.After(time.Minute):
		t.Fatalf("it takes too long until %s", what)
		panic("unreachable")
	}
}

func cleanupNoLocks(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	if n := query[int64](t, pool, "select count(*) from pglimit.holders"); n != 0 {
		t.Errorf("%d locks were left behind", n)
	}
}
