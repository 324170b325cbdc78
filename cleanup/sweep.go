package cleanup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"time"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/semaphore"
)

// maxTimeouts in a row make a run give up the strategy. The last of these batches has a
// sixteenth of the rows of the first.
const maxTimeouts = 5

// sweepAll walks the table of each strategy, also after one has failed.
func (c *Cleaner) sweepAll(ctx context.Context) Report {
	var report Report
	var missing error
	for _, strategy := range c.strategies {
		if err := stopped(ctx); err != nil {
			report.fail(err) // unless the last strategy was cut short, and said so
			break
		}
		s := c.sweep(ctx, strategy)
		if errors.Is(s.Err, rate.ErrNotMigrated) {
			c.config.Logger.Debug("pglimit cleanup passes over a strategy that is not installed", "strategy", s.Strategy, "error", s.Err)
			// The first such error is kept: exclusion_range comes last, and its advice is
			// about an extension, which does not help where everything is missing.
			if missing == nil {
				missing = s.Err
			}
			continue
		}
		report.add(s)
	}
	// Some strategies may be missing on purpose, but not all.
	if len(report.Strategies) == 0 && report.Err == nil {
		report.Err = missing
	}
	return report
}

func (c *Cleaner) sweep(ctx context.Context, strategy rate.Sweeper) (report StrategyReport) {
	start := time.Now()
	report.Strategy = strategy.Name()
	defer func() {
		if what := recover(); what != nil { // the others are swept all the same
			report.Err = fmt.Errorf("cleanup: strategy %s panicked: %v\n%s", report.Strategy, what, debug.Stack())
		}
		report.Duration = time.Since(start)
	}()

	var from rate.Cursor
	size, timeouts := c.config.BatchSize, 0
	for {
		swept, late, err := c.batch(ctx, strategy, from, size)
		switch {
		case err == nil:
			report.Removed += swept.Removed
			report.Batches++
			if swept.Done {
				return report
			}
			if swept.Next <= from {
				report.Err = fmt.Errorf("cleanup: strategy %s does not get past %d: Sweep must return a larger Next or Done", report.Strategy, from)
				return report
			}
			from, timeouts = swept.Next, 0
		case ctx.Err() != nil || !late:
			report.Err = cmp.Or(stopped(ctx), err)
			return report
		default:
			timeouts++
			if timeouts == maxTimeouts {
				report.Err = fmt.Errorf("cleanup: strategy %s: %d batches in a row took too long, the last of %d rows, with a Timeout of %v; the rest of the table is left to the next run: %w",
					report.Strategy, timeouts, size, c.config.Timeout, err)
				return report
			}
			c.config.Logger.Debug("pglimit cleanup: a batch took too long, the next is half as large", "strategy", report.Strategy, "rows", size, "error", err)
			size = max(1, size/2)
		}
		if c.pause(ctx); ctx.Err() != nil {
			report.Err = stopped(ctx)
			return report
		}
	}
}

// batch sweeps once. late: it took longer than Config.Timeout or the server's
// statement_timeout, and fewer rows may do.
func (c *Cleaner) batch(ctx context.Context, strategy rate.Sweeper, from rate.Cursor, size int) (swept rate.Swept, late bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.config.Timeout)
	defer cancel()
	swept, err = strategy.Sweep(ctx, c.session, from, size)
	late = err != nil && (errors.Is(ctx.Err(), context.DeadlineExceeded) || postgres.Is(err, postgres.QueryCanceled))
	return swept, late, err
}

// pause waits between two batches, unless ctx is done. The jitter keeps
// the batches from falling into step with other periodic work.
func (c *Cleaner) pause(ctx context.Context) {
	if c.config.Pause <= 0 {
		return
	}
	timer := time.NewTimer(c.config.Pause/2 + rand.N(c.config.Pause))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// stopped says why a run ended early: it lost the lock, or was asked to end. If ctx has not ended, it is nil.
func stopped(ctx context.Context) error {
	cause := context.Cause(ctx)
	switch {
	case cause == nil:
		return nil
	case errors.Is(cause, semaphore.ErrLost):
		return ErrLost
	}
	return fmt.Errorf("%w: %w", ErrStopped, cause)
}
