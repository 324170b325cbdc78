package cleanup

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	"go.uber.org/goleak"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const often = 5 * time.Millisecond

func TestStartRunsAtOnceAndThenEveryInterval(t *testing.T) {
	t.Parallel()
	reports := make(chan Report)
	c, _ := testCleaner(t, Config{Interval: often, OnRun: func(r Report) { reports <- r }}, rows("a", 5))
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if r := within(t, "a run is reported", reports); r.Removed != 5 || r.Err != nil {
			t.Errorf("got %+v, want 5 rows removed", r)
		}
	}
	if err := c.Start(t.Context()); !errors.Is(err, ErrStarted) {
		t.Errorf("second Start: got %v, want ErrStarted", err)
	}
	stop(t, c, reports)
	if err := c.Start(t.Context()); !errors.Is(err, ErrStopped) {
		t.Errorf("Start after Stop: got %v, want ErrStopped", err)
	}
}

// stop while runs may want to be reported.
func stop(t *testing.T, c *Cleaner, reports <-chan Report) {
	t.Helper()
	stopped := make(chan error, 1)
	go func() { stopped <- c.Stop(context.Background()) }()
	for {
		select {
		case <-reports:
		case err := <-stopped:
			if err != nil {
				t.Fatalf("Stop: %v", err)
			}
			return
		case <-time.After(time.Minute):
			t.Fatal("Stop does not return")
		}
	}
}

// Cancelling the context of Start is the same as Stop.
func TestStopCancelsTheBatch(t *testing.T) {
	t.Parallel()
	for name, stops := range map[string]func(*Cleaner, context.CancelFunc) error{
		"Stop":   func(c *Cleaner, _ context.CancelFunc) error { return c.Stop(context.Background()) },
		"cancel": func(_ *Cleaner, cancel context.CancelFunc) error { cancel(); return nil },
	} {
		strategy, began, letGo := blocking("endless")
		reports := make(chan Report, 1)
		c, locker := testCleaner(t, Config{OnRun: func(r Report) { reports <- r }}, strategy, rows("next", 5))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		if err := c.Start(ctx); err != nil {
			t.Fatal(err)
		}
		within(t, "a batch begins", began)
		letGo <- struct{}{}
		within(t, "the next batch begins", began)
		if err := stops(c, cancel); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		within(t, "everything ends", c.ended)
		if locker.isHeld() {
			t.Errorf("%s: the lock is still held", name)
		}
		if r := <-reports; r.Removed != 1 || !errors.Is(r.Err, ErrStopped) || strings.Count(r.Err.Error(), "stopped") != 1 || len(r.Strategies) != 1 {
			t.Errorf("%s: got %+v, want the first batch's row and ErrStopped, once", name, r)
		}
		if err := c.Stop(context.Background()); err != nil {
			t.Errorf("%s: Stop once more: %v", name, err)
		}
	}
}

func TestStopDoesNotOutlastItsContext(t *testing.T) {
	t.Parallel()
	told, letGo := make(chan struct{}), make(chan struct{})
	c, _ := testCleaner(t, Config{OnRun: func(Report) { close(told); <-letGo }}, rows("a", 5))
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	within(t, "OnRun is called", told)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Stop(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want Canceled", err)
	}
	close(letGo)
	if err := c.Stop(context.Background()); err != nil {
		t.Errorf("Stop, waiting: %v", err)
	}
}

func TestStopWithoutStart(t *testing.T) {
	t.Parallel()
	c, _ := testCleaner(t, Config{}, rows("a", 5))
	if err := c.Stop(t.Context()); err != nil {
		t.Errorf("Stop: %v", err)
	}
	if report, err := c.RunOnce(t.Context()); err != nil || report.Removed != 5 {
		t.Errorf("RunOnce: got %+v, %v; want 5 rows removed", report, err)
	}
}

// A panic, of the caller's function or of a strategy, would end the process from a goroutine that the caller does not
// know.
func TestPanicIsLoggedAndTheNextRunComes(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	runs, reports := 0, make(chan Report)
	panics := fakeStrategy{name: "panicking", sweep: func(context.Context, rate.Cursor, int) (rate.Swept, error) {
		if runs++; runs == 1 {
			panic("from a strategy")
		}
		return rate.Swept{Done: true}, nil
	}}
	logger := slog.New(slog.NewTextHandler(&log, nil))
	c, locker := testCleaner(t, Config{Interval: often, Logger: logger, OnRun: func(r Report) {
		reports <- r
		if runs == 2 {
			panic("from the caller")
		}
	}}, panics)
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	within(t, "the second run", reports)
	within(t, "the third run", reports)
	stop(t, c, reports)
	for _, want := range []string{"level=ERROR", "from the caller", "from a strategy", "schedule_test.go"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("no %q in the log:\n%s", want, log.String())
		}
	}
	if locker.isHeld() {
		t.Error("the lock is still held")
	}
}

func TestTickThatIsNotOursIsNotReported(t *testing.T) {
	t.Parallel()
	broken := errors.New("no connection")
	for _, test := range []struct {
		name     string
		claim    error
		held     bool
		reported bool
	}{
		{name: "not due", claim: ErrNotDue},
		{name: "locked", held: true},
		{name: "Postgres is away", claim: broken, reported: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var reports []Report
			c, locker := testCleaner(t, Config{OnRun: func(r Report) { reports = append(reports, r) }}, rows("a", 5))
			locker.claimErr, locker.held = test.claim, test.held
			err := c.tick(t.Context())
			switch {
			case test.reported && (len(reports) != 1 || !errors.Is(reports[0].Err, broken) || !errors.Is(err, broken)):
				t.Errorf("got reports %+v and error %v, want one with the error", reports, err)
			case !test.reported && (len(reports) != 0 || err != nil):
				t.Errorf("got reports %+v and error %v, want none", reports, err)
			}
		})
	}
}

// The scheduler stays the caller's: it has other jobs, and an elector, with which
// gocron asks no locker.
func TestSchedulerOfTheCaller(t *testing.T) {
	t.Parallel()
	scheduler, err := gocron.NewScheduler(gocron.WithDistributedElector(leader{}), gocron.WithStopTimeout(20*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	others := make(chan struct{}, 1)
	_, err = scheduler.NewJob(gocron.DurationJob(often), gocron.NewTask(func() {
		select {
		case others <- struct{}{}:
		default:
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	strategy, began, letGo := blocking("endless")
	c, locker := testCleaner(t, Config{Scheduler: scheduler, Interval: time.Hour}, strategy)
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(began) != 0 {
		t.Error("it runs though the caller's scheduler is not started")
	}
	scheduler.Start()
	within(t, "a batch begins", began)
	if !locker.isHeld() {
		t.Error("it runs without the lock")
	}
	close(letGo)
	if err := c.Stop(t.Context()); err != nil {
		t.Errorf("Stop: %v", err)
	}
	if n := len(scheduler.Jobs()); n != 1 {
		t.Errorf("the scheduler has %d jobs after Stop, want the caller's one", n)
	}
	within(t, "the caller's job runs", others)
	within(t, "the caller's job runs again", others)
	if err := scheduler.Shutdown(); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
}

// Its shutdown asks the run to end, as Stop does.
func TestSchedulerOfTheCallerShutsDown(t *testing.T) {
	t.Parallel()
	scheduler, err := gocron.NewScheduler(gocron.WithStopTimeout(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	scheduler.Start()
	strategy, began, _ := blocking("endless")
	c, locker := testCleaner(t, Config{Scheduler: scheduler}, strategy)
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	within(t, "a batch begins", began)
	if err := scheduler.Shutdown(); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	if locker.isHeld() {
		t.Error("the lock is held after Shutdown")
	}
	if err := c.Stop(t.Context()); err != nil {
		t.Errorf("Stop: %v", err)
	}
}

type leader struct{}

func (leader) IsLeader(context.Context) error { return nil }
