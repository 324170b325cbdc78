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
)

// A run has two contexts. When asked is done, the run ends after the batch under way.
// When work is done, that batch is cancelled too.

// maxTimeouts in a row make a run give up the strategy. The last of these batches has a
// sixteenth of the rows of the first.
const maxTimeouts = 5

// sweepAll walks the table of each strategy, also after one has failed.
func (c *Cleaner) sweepAll(asked, work context.Context) Report {
	var report Report
	var missing error
	for _, strategy := range c.strategies {
		if errors.Is(report.Err, ErrStopped) || errors.Is(report.Err, ErrLost) {
			break // the last strategy was cut short, and its error says why
		}
		if err := cmp.Or(stopped(work), stopped(asked)); err != nil {
			report.fail(err)
			break
		}
		s := c.sweep(asked, work, strategy)
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

func (c *Cleaner) sweep(asked, work context.Context, strategy rate.Sweeper) (report StrategyReport) {
	start := time.Now()
	report.Strategy = strategy.Name()
	defer func() {
		if what := recover(); what != nil {
			report.Err = fmt.Errorf("cleanup: strategy %s panicked: %v", report.Strategy, what)
			c.config.Logger.Error("pglimit cleanup: a strategy panicked", "strategy", report.Strategy, "panic", what, "stack", string(debug.Stack()))
		}
		report.Duration = time.Since(start)
	}()

	var from rate.Cursor
	size, timeouts := c.config.BatchSize, 0
	for {
		swept, late, err := c.batch(work, strategy, from, size)
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
		case work.Err() != nil || !late:
			report.Err = cmp.Or(stopped(work), err)
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
		if c.pause(asked); asked.Err() != nil {
			report.Err = stopped(asked)
			return report
		}
	}
}

// batch sweeps once. late: it took longer than Config.Timeout or the server's
// statement_timeout, and fewer rows may do.
func (c *Cleaner) batch(work context.Context, strategy rate.Sweeper, from rate.Cursor, size int) (swept rate.Swept, late bool, err error) {
	ctx, cancel := context.WithTimeout(work, c.config.Timeout)
	defer cancel()
	swept, err = strategy.Sweep(ctx, c.session, from, size)
	late = err != nil && (errors.Is(ctx.Err(), context.DeadlineExceeded) || postgres.Is(err, postgres.QueryCanceled))
	return swept, late, err
}

// pause waits between two batches, unless asked is done. The jitter keeps
// the batches from falling into step with other periodic work.
func (c *Cleaner) pause(asked context.Context) {
	if c.config.Pause <= 0 {
		return
	}
	timer := time.NewTimer(c.config.Pause/2 + rand.N(c.config.Pause))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-asked.Done():
	}
}

// stopped says why a run ended early: it lost the lock, or was asked to end. If ctx has not ended, it is nil.
func stopped(ctx context.Context) error {
	cause := context.Cause(ctx)
	if cause == nil || errors.Is(cause, ErrLost) || errors.Is(cause, ErrStopped) {
		return cause
	}
	return fmt.Errorf("%w: %w", ErrStopped, cause)
}
