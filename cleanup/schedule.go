package cleanup

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"
)

// Start begins the schedule: this instance tries to do a run at once and then every
// Interval. Cancelling ctx stops it as Stop does. Start does not wait for Postgres, nor
// does it fail if Postgres is down: an error at a tick is logged and reported, and the
// next tick tries again.
//
// A Cleaner is started once: the error is [ErrStarted] if it was before, [ErrStopped] if
// it was stopped.
func (c *Cleaner) Start(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.live.Err() != nil:
		return ErrStopped
	case c.started:
		return ErrStarted
	}
	scheduler, private := c.config.Scheduler, c.config.Scheduler == nil
	if private {
		var err error
		if scheduler, err = gocron.NewScheduler(); err != nil {
			return fmt.Errorf("cleanup: could not make a scheduler: %w", err)
		}
	}
	// The job takes the lock by itself, not through gocron: gocron asks no Locker
	// where a scheduler has an Elector, and does not tell a job that its
	// lock was lost.
	job, err := scheduler.NewJob(
		gocron.DurationJob(c.config.Interval),
		gocron.NewTask(c.tick),
		gocron.WithName(JobName),
		gocron.WithStartAt(gocron.WithStartImmediately()),
		gocron.WithDisabledDistributedJobLocker(true),
		gocron.WithEventListeners(gocron.AfterJobRunsWithPanic(func(_ uuid.UUID, _ string, what any) {
			c.config.Logger.Error("pglimit cleanup panicked", "panic", what, "stack", string(debug.Stack()))
		})),
	)
	if err != nil {
		if private {
			_ = scheduler.Shutdown()
		}
		return fmt.Errorf("cleanup: could not schedule the job: %w", err)
	}
	if private {
		scheduler.Start()
		c.quit = scheduler.Shutdown
	} else {
		c.quit = func() error { return removeJob(scheduler, job) }
	}
	c.started = true
	c.unwatch = context.AfterFunc(ctx, c.begin)
	return nil
}

// Stop ends the schedule. No new run begins, and the batch under way is cancelled: it is rolled back, and the next run
// does it again. When Stop returns nil, the lock is released and nothing of the Cleaner is left running. If ctx ends
// first, Stop returns an error without waiting.
//
// Calling it again waits for the same end. A Cleaner that was not started can be
// stopped, too.
func (c *Cleaner) Stop(ctx context.Context) error {
	c.begin()
	select {
	case <-c.ended:
		return c.endErr
	case <-ctx.Done():
		return fmt.Errorf("cleanup: did not wait for the end of the run: %w", context.Cause(ctx))
	}
}

// begin starts to stop, and does not wait.
func (c *Cleaner) begin() {
	c.stopping.Do(func() {
		c.mu.Lock()
		c.end()
		quit, unwatch := c.quit, c.unwatch
		c.mu.Unlock()
		go func() {
			defer close(c.ended)
			// The run ends before the scheduler is shut down: gocron waits for its jobs
			// in a busy loop, and not for as long as OnRun may take.
			c.runs.Wait()
			if quit == nil {
				return // never started
			}
			unwatch()
			if err := quit(); err != nil {
				c.endErr = fmt.Errorf("cleanup: the scheduler did not end: %w", err)
			}
		}()
	})
}

// removeJob removes the job from the caller's scheduler, which may be shut down by now.
func removeJob(scheduler gocron.Scheduler, job gocron.Job) error {
	if err := scheduler.RemoveJob(job.ID()); !errors.Is(err, gocron.ErrJobNotFound) {
		return err
	}
	return nil
}

// tick is the job: it claims the run and does it, unless another instance has claimed it.
// gocron cancels ctx when the scheduler, perhaps the caller's, is shut down.
func (c *Cleaner) tick(ctx context.Context) error {
	c.mu.Lock()
	if c.live.Err() != nil {
		c.mu.Unlock()
		return nil
	}
	c.runs.Add(1)
	c.mu.Unlock()
	defer c.runs.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.live, cancel)()

	var report Report
	if err := c.locker.claim(ctx, JobName); err != nil {
		report.Err = err
	} else {
		report = c.run(ctx)
	}
	switch {
	case errors.Is(report.Err, ErrNotDue) || errors.Is(report.Err, ErrLocked):
		c.config.Logger.Debug("pglimit cleanup leaves this run to others", "reason", report.Err)
		return nil
	case report.Strategies == nil && ctx.Err() != nil:
		return nil // stopped before it began
	}
	report.log(c.config.Logger)
	c.config.OnRun(report)
	return report.Err
}
