package cleanup

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-co-op/gocron/v2"
	"go.uber.org/goleak"
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

func TestStopLetsTheBatchFinishWithinTheGracePeriod(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		strategy, began, letGo := blocking("endless")
		reports := make(chan Report, 1)
		c, locker := testCleaner(t, Config{Timeout: time.Hour, OnRun: func(r Report) { reports <- r }}, strategy, rows("next", 5))
		if err := c.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		batch := <-began
		stopped := make(chan error, 2)
		for range 2 {
			go func() { stopped <- c.Stop(context.Background()) }()
		}
		time.Sleep(10*time.Second - 1) //nolint:forbidigo // by the clock of the bubble, which is exact
		synctest.Wait()
		if batch.Err() != nil {
			t.Error("the batch is cancelled before the grace period is over")
		}
		letGo <- struct{}{}
		for range 2 {
			if err := <-stopped; err != nil {
				t.Errorf("Stop: %v", err)
			}
		}
		if locker.isHeld() {
			t.Error("the lock is held after Stop")
		}
		if r := <-reports; r.Removed != 1 || !errors.Is(r.Err, ErrStopped) || strings.Count(r.Err.Error(), "stopped") != 1 || len(r.Strategies) != 1 {
			t.Errorf("got %+v, want the batch's row and ErrStopped, once", r)
		}
		if err := c.Stop(context.Background()); err != nil {
			t.Errorf("Stop once more: %v", err)
		}
	})
}

// Cancelling the context of Start is the same as Stop.
func TestBatchIsCancelledWhenTheGracePeriodIsOver(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ grace, want time.Duration }{
		"default": {0, 10 * time.Second},
		"short":   {time.Second, time.Second},
		"none":    {-1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				strategy, began, _ := blocking("endless")
				reports := make(chan Report, 1)
				c, locker := testCleaner(t, Config{Timeout: time.Hour, Grace: test.grace, OnRun: func(r Report) { reports <- r }}, strategy)
				ctx, cancel := context.WithCancel(t.Context())
				if err := c.Start(ctx); err != nil {
					t.Fatal(err)
				}
				batch, start := <-began, time.Now()
				cancel()
				<-batch.Done()
				if took := time.Since(start); took != test.want {
					t.Errorf("the batch is cancelled after %v, want %v", took, test.want)
				}
				if err := c.Stop(context.Background()); err != nil {
					t.Errorf("Stop: %v", err)
				}
				if locker.isHeld() {
					t.Error("the lock is held after Stop")
				}
				if r := <-reports; !errors.Is(r.Err, ErrStopped) || !strings.Contains(r.Err.Error(), "grace period") {
					t.Errorf("got %v, want ErrStopped by the grace period", r.Err)
				}
			})
		})
	}
}

func TestStopDoesNotOutlastItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		strategy, began, _ := blocking("endless")
		c, locker := testCleaner(t, Config{Timeout: time.Hour, Grace: time.Hour}, strategy)
		if err := c.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-began
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := c.Stop(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want DeadlineExceeded", err)
		}
		if err := c.Stop(context.Background()); err != nil {
			t.Errorf("Stop, waiting: %v", err)
		}
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("it took %v for the batch to be cancelled, want a second", took)
		}
		if locker.isHeld() {
			t.Error("the lock is held after Stop")
		}
	})
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

func TestPanicInOnRunIsLoggedAndTheNextRunComes(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	runs := make(chan struct{})
	c, _ := testCleaner(t, Config{
		Interval: often,
		Logger:   slog.New(slog.NewTextHandler(&log, nil)),
		OnRun: func(Report) {
			select {
			case runs <- struct{}{}:
			case <-t.Context().Done():
			}
			panic("from the caller")
		},
	}, rows("a", 5))
	ctx, cancel := context.WithCancel(t.Context())
	if err := c.Start(ctx); err != nil {
		t.Fatal(err)
	}
	within(t, "the first run", runs)
	within(t, "the second run", runs)
	cancel()
	go func() {
		for {
			select {
			case <-runs:
			case <-c.ended:
				return
			}
		}
	}()
	within(t, "everything ends", c.ended)
	if !strings.Contains(log.String(), "level=ERROR") || !strings.Contains(log.String(), "from the caller") {
		t.Errorf("the panic is not in the log:\n%s", log.String())
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
	c, locker := testCleaner(t, Config{Scheduler: scheduler, Grace: time.Millisecond}, strategy)
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
