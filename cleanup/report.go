package cleanup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// Report is what one run did.
type Report struct {
	// Strategies in the order in which they were swept. One that is not installed
	// in this database, or was not reached, is missing.
	Strategies []StrategyReport

	Removed  int64         // rows, of all strategies
	Batches  int           // of all strategies
	Duration time.Duration // with pauses, and the time to take and release the lock

	// Err is nil if all went well: else the strategies' errors and what befell the
	// run as a whole, joined. [ErrStopped], [ErrLost], pglimit.ErrNotMigrated and
	// pglimit.ErrPermission can be told with errors.Is.
	Err error
}

// StrategyReport is what a run did for one strategy.
type StrategyReport struct {
	Strategy string        // its name
	Removed  int64         // rows
	Batches  int           // that succeeded
	Duration time.Duration // with the pauses between batches
	Err      error         // why its walk ended early, or nil
}

func (r *Report) add(s StrategyReport) {
	r.Strategies = append(r.Strategies, s)
	r.Removed += s.Removed
	r.Batches += s.Batches
	r.fail(s.Err)
}

// fail joins an error, unless it is nil or is there already. Unlike errors.Join it
// keeps to one line.
func (r *Report) fail(err error) {
	switch {
	case err == nil || errors.Is(r.Err, err):
	case r.Err == nil:
		r.Err = err
	default:
		r.Err = fmt.Errorf("%w; %w", r.Err, err)
	}
}

// log writes a line for the run, and one per strategy for who looks closer.
func (r *Report) log(logger *slog.Logger) {
	level, attrs := slog.LevelDebug, []slog.Attr{
		slog.Int64("removed", r.Removed), slog.Int("batches", r.Batches), slog.Duration("duration", r.Duration),
	}
	if r.Removed > 0 {
		level = slog.LevelInfo
	}
	if r.Err != nil {
		attrs = append(attrs, slog.String("error", r.Err.Error()))
		// To be stopped, or to find somebody else at it, is no failure.
		if !errors.Is(r.Err, ErrStopped) && !errors.Is(r.Err, ErrLocked) {
			level = slog.LevelError
		}
	}
	logger.LogAttrs(context.Background(), level, "pglimit cleanup", attrs...)
	for _, s := range r.Strategies {
		logger.Debug("pglimit cleanup of a strategy",
			"strategy", s.Strategy, "removed", s.Removed, "batches", s.Batches, "duration", s.Duration, "error", s.Err)
	}
}
