package cleanup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/semaphore"
)

func TestRunWalksEveryTableToItsEnd(t *testing.T) {
	t.Parallel()
	c, locker := testCleaner(t, Config{BatchSize: 10}, rows("a", 95), rows("b", 0), rows("c", 10))
	report, err := c.RunOnce(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := []StrategyReport{{Strategy: "a", Removed: 95, Batches: 10}, {Strategy: "b", Batches: 1}, {Strategy: "c", Removed: 10, Batches: 1}}
	got := slices.Clone(report.Strategies)
	for i := range got {
		got[i].Duration = 0
	}
	if !slices.Equal(got, want) {
		t.Errorf("strategies: got %+v, want %+v", got, want)
	}
	if report.Removed != 105 || report.Batches != 12 {
		t.Errorf("totals: got %d rows in %d batches, want 105 in 12", report.Removed, report.Batches)
	}
	if locker.isHeld() {
		t.Error("the lock is held after the run")
	}
}

func TestFailingStrategyDoesNotStopTheOthers(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	stuck := fakeStrategy{name: "stuck", sweep: func(context.Context, rate.Cursor, int) (rate.Swept, error) {
		return rate.Swept{}, nil
	}}
	panics := fakeStrategy{name: "panics", sweep: func(context.Context, rate.Cursor, int) (rate.Swept, error) { panic("no row") }}
	c, _ := testCleaner(t, Config{}, failing("broken", broken), stuck, panics, rows("whole", 5))
	report, err := c.RunOnce(t.Context())
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), "stuck does not get past 0") || !strings.Contains(err.Error(), "panics panicked: no row") {
		t.Errorf("got error %q, want all three in it", err)
	}
	if len(report.Strategies) != 4 || report.Strategies[3].Removed != 5 || report.Strategies[3].Err != nil {
		t.Errorf("got %+v, want the last of four to remove 5 rows", report.Strategies)
	}
}

func TestStrategyThatIsNotInstalledIsPassedOver(t *testing.T) {
	t.Parallel()
	missing := fmt.Errorf("no such table: %w", rate.ErrNotMigrated)

	c, _ := testCleaner(t, Config{}, failing("missing", missing), rows("there", 5))
	report, err := c.RunOnce(t.Context())
	if err != nil || len(report.Strategies) != 1 || report.Strategies[0].Strategy != "there" {
		t.Errorf("one of two is installed: got %+v, %v; want a report of it and no error", report, err)
	}

	special := fmt.Errorf("no such extension: %w", rate.ErrNotMigrated)
	c, _ = testCleaner(t, Config{}, failing("missing", missing), failing("too", missing), failing("special", special))
	if _, err := c.RunOnce(t.Context()); !errors.Is(err, missing) || errors.Is(err, special) {
		t.Errorf("none is installed: got %v, want the error of the first", err)
	}
}

func TestErrorOfSeveralStrategiesIsSaidOnce(t *testing.T) {
	t.Parallel()
	away := func() error { return fmt.Errorf("no answer from %s", "h:5432") }
	broken := errors.New("broken")
	c, _ := testCleaner(t, Config{}, failing("a", away()), failing("b", broken), failing("c", away()), failing("d", away()))
	report, err := c.RunOnce(t.Context())
	if err == nil || err.Error() != "no answer from h:5432; broken" {
		t.Errorf("got error %q, want each text once", err)
	}
	if !errors.Is(err, broken) {
		t.Error("the second cannot be told with errors.Is")
	}
	for _, s := range report.Strategies {
		if s.Err == nil {
			t.Errorf("%s has no error", s.Strategy)
		}
	}
}

// slog would write a time.Duration as a bare number, of nanoseconds.
func TestJSONLogGivesDurationsInMilliseconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slow := fakeStrategy{name: "slow", sweep: func(context.Context, rate.Cursor, int) (rate.Swept, error) {
			<-time.After(1500 * time.Millisecond) // by the clock of the bubble, which is exact
			return rate.Swept{Done: true}, nil
		}}
		var log bytes.Buffer
		c, _ := testCleaner(t, Config{Logger: slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))}, slow)
		if _, err := c.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(log.String(), `"duration_ms":1500,`) + strings.Count(log.String(), `"duration_ms":1500}`); got != 2 {
			t.Errorf("got %d durations of 1500 ms, want the run's and the strategy's:\n%s", got, &log)
		}
	})
}

func TestBatchThatTakesTooLongIsHalved(t *testing.T) {
	t.Parallel()
	for name, tooLong := range map[string]func(context.Context) error{
		"by our timeout": func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		},
		"by the server's": func(context.Context) error {
			return fmt.Errorf("sweep: %w", &pgconn.PgError{Code: postgres.QueryCanceled})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var sizes []int
			var places []rate.Cursor
			strategy := fakeStrategy{name: "slow", sweep: func(ctx context.Context, from rate.Cursor, limit int) (rate.Swept, error) {
				sizes, places = append(sizes, limit), append(places, from)
				if limit > 30 {
					return rate.Swept{}, tooLong(ctx)
				}
				next := from + rate.Cursor(limit)
				return rate.Swept{Removed: int64(limit), Next: next, Done: next >= 75}, nil
			}}
			c, _ := testCleaner(t, Config{BatchSize: 100, Timeout: time.Millisecond}, strategy)
			report, err := c.RunOnce(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if want := []int{100, 50, 25, 25, 25}; !slices.Equal(sizes, want) {
				t.Errorf("got batches of %d, want %d", sizes, want)
			}
			if want := []rate.Cursor{0, 0, 0, 25, 50}; !slices.Equal(places, want) {
				t.Errorf("got batches at %d, want %d", places, want)
			}
			if report.Removed != 75 || report.Batches != 3 {
				t.Errorf("got %d rows in %d batches, want 75 in 3", report.Removed, report.Batches)
			}
		})
	}
}

func TestStrategyIsGivenUpAfterTimeoutsInARow(t *testing.T) {
	t.Parallel()
	var sizes []int
	slow := fakeStrategy{name: "slow", sweep: func(ctx context.Context, _ rate.Cursor, limit int) (rate.Swept, error) {
		sizes = append(sizes, limit)
		<-ctx.Done()
		return rate.Swept{}, ctx.Err()
	}}
	c, _ := testCleaner(t, Config{BatchSize: 4, Timeout: time.Millisecond}, slow, rows("fast", 5))
	report, err := c.RunOnce(t.Context())
	if want := []int{4, 2, 1, 1, 1}; !slices.Equal(sizes, want) {
		t.Errorf("got batches of %d, want %d", sizes, want)
	}
	if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrStopped) {
		t.Errorf("got error %v, want DeadlineExceeded and not ErrStopped", err)
	}
	if len(report.Strategies) != 2 || report.Strategies[1].Removed != 5 {
		t.Errorf("got %+v, want the second strategy swept", report.Strategies)
	}
}

func TestCancelledRunReportsWhatItDid(t *testing.T) {
	t.Parallel()
	strategy, began, letGo := blocking("endless")
	c, locker := testCleaner(t, Config{}, strategy, rows("next", 5))
	ctx, cancel := context.WithCancel(t.Context())
	type result struct {
		Report
		err error
	}
	results := make(chan result, 1)
	go func() {
		report, err := c.RunOnce(ctx)
		results <- result{report, err}
	}()
	within(t, "the first batch begins", began)
	letGo <- struct{}{}
	within(t, "the second batch begins", began)
	cancel()
	got := within(t, "RunOnce returns", results)
	if !errors.Is(got.err, ErrStopped) || !errors.Is(got.err, context.Canceled) || strings.Count(got.err.Error(), "stopped") != 1 {
		t.Errorf("got error %v, want ErrStopped and Canceled, once", got.err)
	}
	if got.Removed != 1 || got.Batches != 1 || len(got.Strategies) != 1 {
		t.Errorf("got %+v, want the one batch of the one strategy", got.Report)
	}
	if locker.isHeld() {
		t.Error("the lock is held after the run")
	}
}

func TestRunEndsWhenItsLockIsLost(t *testing.T) {
	t.Parallel()
	strategy, began, _ := blocking("endless")
	c, locker := testCleaner(t, Config{}, strategy, rows("next", 5))
	errs := make(chan error, 1)
	go func() {
		_, err := c.RunOnce(t.Context())
		errs <- err
	}()
	within(t, "a batch begins", began)
	locker.lose(semaphore.ErrLost)
	err := within(t, "RunOnce returns", errs)
	if !errors.Is(err, ErrLost) || strings.Count(err.Error(), "lost") != 1 {
		t.Errorf("got error %v, want ErrLost, once", err)
	}
}

func TestRunOnceNeverRunsBesideAnother(t *testing.T) {
	t.Parallel()
	c, locker := testCleaner(t, Config{}, rows("a", 5))
	locker.held = true
	report, err := c.RunOnce(t.Context())
	if !errors.Is(err, ErrLocked) || report.Batches != 0 {
		t.Errorf("got %+v, %v; want nothing done and ErrLocked", report, err)
	}
}
