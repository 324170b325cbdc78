package cleanup

import (
	"cmp"
	"fmt"
	"log/slog"
	"time"

	"github.com/go-co-op/gocron/v2"
)

// Config says how a [Cleaner] works. The zero value of each field is its default.
type Config struct {
	// Interval between two runs, of all instances together. At least 1ms.
	// Zero: one minute.
	Interval time.Duration

	// BatchSize is about how many rows a batch looks at. Larger batches sweep faster
	// and hold the rows that they remove for longer: a take on one of these rows
	// waits for the batch. Zero: 1000.
	BatchSize int

	// Pause between two batches, on average: each lasts between half and one and
	// a half times that. Zero: 10ms. Negative: none.
	Pause time.Duration

	// Timeout of a batch. A batch that takes longer is rolled back and tried again at
	// half the size. After five such batches in a row the strategy is given up until
	// the next run. Zero: 5s.
	Timeout time.Duration

	// OnRun is called after each scheduled run of this instance, when the lock is
	// released, and after each tick at which the claim or the lock failed with an
	// error. It is not called when another instance has the run, nor by
	// [Cleaner.RunOnce]. Stop waits for it, so it must not call Stop. Nil: nothing is called.
	OnRun func(Report)

	// Logger gets failures as errors, runs that removed something as infos, and
	// everything else as debug messages. Nil: slog.Default().
	Logger *slog.Logger

	// Scheduler is one of the caller's, to which Start adds the job and from which
	// Stop removes it. They neither start nor shut down the scheduler. Its own
	// Locker, if it has one, is not used for this job. Nil: a private scheduler.
	Scheduler gocron.Scheduler
}

func (c Config) withDefaults() Config {
	c.Interval = cmp.Or(c.Interval, time.Minute)
	c.BatchSize = cmp.Or(c.BatchSize, 1000)
	c.Pause = cmp.Or(c.Pause, 10*time.Millisecond)
	c.Timeout = cmp.Or(c.Timeout, 5*time.Second)
	c.Logger = cmp.Or(c.Logger, slog.Default())
	if c.OnRun == nil {
		c.OnRun = func(Report) {}
	}
	return c
}

func (c Config) validate() error {
	switch {
	case c.Interval < time.Millisecond:
		return fmt.Errorf("cleanup: Config.Interval is %v: it must be at least 1ms, or 0 for one minute", c.Interval)
	case c.BatchSize < 1:
		return fmt.Errorf("cleanup: Config.BatchSize is %d: it must be at least 1, or 0 for 1000", c.BatchSize)
	case c.Timeout < 0:
		return fmt.Errorf("cleanup: Config.Timeout is %v: it must not be negative; 0 means 5s", c.Timeout)
	}
	return nil
}
