package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pglimit/ratelimit/cleanup"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

const cleanupLong = `Remove the rows of buckets that are full again, every --interval until Ctrl-C
or SIGTERM, or just --once. It keeps the tables small. A row goes when its
bucket has been full for a minute, so no decision changes, unless the
database's clock steps back by more than that.

Any number of instances may run, here or inside services: one of them does each
run. What happens is logged to stderr (as JSON with --output json). After Ctrl-C
or SIGTERM the exit code is 0. It is 2 if the database cannot be connected to at
the start or is not migrated; later failures are logged, and the next run tries
again. With --metrics it exports what the tables cost and when it ran, for
Prometheus, where no instance of "pglimit serve" or of a service does.

With --once the exit code is 2 if anything failed, and 0 if another run is under
way, which then does the work.`

type cleanupFlags struct {
	once     bool
	interval time.Duration
	metrics  string
}

func newCleanupCommand(a *app) *cobra.Command {
	var f cleanupFlags
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove rows that are no longer needed, until Ctrl-C or once",
		Long:  cleanupLong,
		Example: lines(
			"pglimit cleanup --interval 5m",
			"pglimit cleanup --metrics :9187",
			"pglimit cleanup --once --output json",
		),
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case f.interval < time.Millisecond:
				return fmt.Errorf("--interval is %v: it must be at least 1ms", f.interval)
			case f.metrics != "" && f.once:
				return errors.New("--metrics goes without --once: Prometheus finds nobody when the run is over")
			}
			pool, err := a.pool(cmd.Context())
			if err != nil {
				return err
			}
			defer pool.Close()
			if f.once {
				return a.cleanOnce(cmd.Context(), pool)
			}
			return a.clean(cmd.Context(), pool, f)
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&f.once, "once", false, "run once, now, and report")
	flags.DurationVar(&f.interval, "interval", time.Minute, "`TIME` between two runs, of all instances together")
	flags.StringVar(&f.metrics, "metrics", "", "`ADDRESS` to answer GET /metrics on: host:port, or :port to accept "+
		"connections from other machines; not with --once")
	return cmd
}

// logger writes to stderr, in the format that --output asks for.
func (a *app) logger(level slog.Level) *slog.Logger {
	options := &slog.HandlerOptions{Level: level}
	if a.output == outputJSON {
		return slog.New(slog.NewJSONHandler(a.stderr, options))
	}
	return slog.New(slog.NewTextHandler(a.stderr, options))
}

// clean runs the job until ctx ends, or until the schema is missing: waiting for the next run would not help.
func (a *app) clean(ctx context.Context, pool *pgxpool.Pool, f cleanupFlags) error {
	log := a.logger(slog.LevelInfo)
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	cleaner, err := cleanup.New(pool, strategies.All(), cleanup.Config{
		Interval: f.interval, Logger: log,
		OnRun: func(report cleanup.Report) {
			if errors.Is(report.Err, pglimit.ErrNotMigrated) {
				end(report.Err)
			}
		},
	})
	if err != nil {
		return err
	}
	if f.metrics != "" {
		stop, err := serveMetrics(ctx, f.metrics, pool, log)
		if err != nil {
			return err
		}
		defer stop()
	}
	if err := cleaner.Start(ctx); err != nil {
		return err
	}
	log.Info("pglimit cleanup started", "interval_ms", f.interval.Milliseconds())
	<-ctx.Done()
	if err := cleaner.Stop(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	log.Info("pglimit cleanup stopped")
	ended := new(endedBySignal)
	if errors.As(context.Cause(ctx), ended) && ended.Signal != syscall.SIGHUP {
		return nil
	}
	return context.Cause(ctx)
}

// cleanOnce runs the job once and prints what it removed.
func (a *app) cleanOnce(ctx context.Context, pool *pgxpool.Pool) error {
	// The report says all that would be logged.
	cleaner, err := cleanup.New(pool, strategies.All(), cleanup.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	report, failed := cleaner.RunOnce(ctx)
	skipped := errors.Is(failed, cleanup.ErrLocked)
	if failed != nil && !skipped && report.Batches == 0 {
		return failed
	}
	text := fmt.Sprintf("%s removed\n", plural(report.Removed, "row", "rows"))
	if skipped {
		failed, text = nil, "another run is under way: nothing done here\n"
	}
	return errors.Join(failed, a.print(struct {
		Removed int64 `json:"removed"` // rows
		Batches int   `json:"batches"`
		Skipped bool  `json:"skipped"` // another run is under way
	}{report.Removed, report.Batches, skipped}, text))
}
