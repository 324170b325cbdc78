package cleanup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"
)

// Report is what one run did.
type Report struct {
	// Strategies in the order in which they were swept. One that is not installed
	// in this database, or was not reached, is missing.
	Strategies []StrategyReport

	Removed  int64         // rows, of all strategies and of the table pglimit.top_keys
	Batches  int           // of all these
	Duration time.Duration // with pauses, and the time to take and release the lock

	// Err is nil if all went well, else the errors of the strategies and of the run
	// as a whole, joined. errors.Is tells [ErrStopped], [ErrLost],
	// pglimit.ErrNotMigrated and pglimit.ErrPermission.
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
	if s.Strategy != (topKeys{}).Name() {
		r.Strategies = append(r.Strategies, s)
	}
	r.Removed += s.Removed
	r.Batches += s.Batches
	r.fail(s.Err)
}

// fail joins an error to Err, on one line, unless Err says that already: while Postgres is down, every strategy has the
// same error.
func (r *Report) fail(err error) {
	switch {
	case r.Err == nil:
		r.Err = err
	case err != nil && !strings.Contains(r.Err.Error(), err.Error()):
		r.Err = fmt.Errorf("%w; %w", r.Err, err)
	}
}

// log writes a line for the run and, at level debug, one for each strategy.
func (r *Report) log(logger *slog.Logger) {
	level, attrs := slog.LevelDebug, []slog.Attr{
		slog.Int64("removed", r.Removed), slog.Int("batches", r.Batches), durationMS(r.Duration),
	}
	if r.Removed > 0 {
		level = slog.LevelInfo
	}
	if r.Err != nil {
		attrs = append(attrs, slog.String("error", r.Err.Error()))
		// A run that was stopped, or met another run, has not failed.
		if !errors.Is(r.Err, ErrStopped) && !errors.Is(r.Err, ErrLocked) {
			level = slog.LevelError
		}
	}
	logger.LogAttrs(context.Background(), level, "pglimit cleanup", attrs...)
	for _, s := range r.Strategies {
		logger.LogAttrs(context.Background(), slog.LevelDebug, "pglimit cleanup of a strategy",
			slog.String("strategy", s.Strategy), slog.Int64("removed", s.Removed), slog.Int("batches", s.Batches),
			durationMS(s.Duration), slog.Any("error", s.Err))
	}
}

// durationMS carries its unit in its name: slog writes a time.Duration into JSON as
// a bare number, of nanoseconds.
func durationMS(d time.Duration) slog.Attr {
	return slog.Float64("duration_ms", float64(d.Microseconds())/1000)
}
