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
or SIGTERM the exit code is 0. After SIGHUP it is 129, so that a service manager
starts it again: it reads no file. It is 2 if the database cannot be connected
to at the start or is not migrated; later failures are logged, and the next run
tries again. With --metrics it exports what the tables cost and when it ran, for
Prometheus, where no instance of "pglimit serve" or of a service does.

With --once it prints what was removed. The exit code is 2 if anything failed,
and 0 if another run is under way, which then does the work.`

type cleanupFlags struct {
	once     bool
	verbose  bool
	interval time.Duration
	pause    time.Duration
	timeout  time.Duration
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
			if err := f.check(); err != nil {
				return err
			}
			pool, err := a.pool(cmd.Context())
			if err != nil {
				return err
			}
			defer pool.Close()
			if f.once {
				return a.cleanOnce(cmd.Context(), pool, f)
			}
			return a.clean(cmd.Context(), pool, f)
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&f.once, "once", false, "run once, now, and report")
	flags.DurationVar(&f.interval, "interval", time.Minute, "`TIME` between two runs, of all instances together")
	flags.DurationVar(&f.pause, "pause", 10*time.Millisecond, "`TIME` between two batches, on average; 0 for none")
	flags.DurationVar(&f.timeout, "timeout", 5*time.Second,
		"longest `TIME` of a batch: one that takes longer is tried again at half the size")
	flags.StringVar(&f.metrics, "metrics", "", "`ADDRESS` to answer GET /metrics on: host:port, or :port to accept "+
		"connections from other machines; not with --once")
	flags.BoolVarP(&f.verbose, "verbose", "v", false, "log runs that removed nothing, too")
	return cmd
}

func (f cleanupFlags) check() error {
	switch {
	case f.interval < time.Millisecond:
		return fmt.Errorf("--interval is %v: it must be at least 1ms", f.interval)
	case f.pause < 0:
		return fmt.Errorf("--pause is %v: it must not be negative", f.pause)
	case f.timeout <= 0:
		return fmt.Errorf("--timeout is %v: it must be longer than zero", f.timeout)
	case f.metrics != "" && f.once:
		return errors.New("--metrics goes without --once: Prometheus finds nobody when the run is over")
	}
	return nil
}

func (f cleanupFlags) config(logger *slog.Logger) cleanup.Config {
	config := cleanup.Config{Interval: f.interval, Pause: f.pause, Timeout: f.timeout, Logger: logger}
	if f.pause == 0 { // for Config that is the default
		config.Pause = -1
	}
	return config
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
	level := slog.LevelInfo
	if f.verbose {
		level = slog.LevelDebug
	}
	log := a.logger(level)
	config := f.config(log)
	hopeless := make(chan error, 1)
	config.OnRun = func(report cleanup.Report) {
		if errors.Is(report.Err, pglimit.ErrNotMigrated) {
			select {
			case hopeless <- report.Err:
			default:
			}
		}
	}
	cleaner, err := cleanup.New(pool, strategies.All(), config)
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
	log.Info("pglimit cleanup started", "interval_ms", fractionalMS(f.interval))
	var failed error
	select {
	case <-ctx.Done():
	case failed = <-hopeless:
	}
	if err := cleaner.Stop(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	log.Info("pglimit cleanup stopped")
	var ended endedBySignal
	if errors.As(context.Cause(ctx), &ended) && ended.Signal == syscall.SIGHUP {
		return ended
	}
	return failed
}

// cleanOnce runs the job once and prints its report.
func (a *app) cleanOnce(ctx context.Context, pool *pgxpool.Pool, f cleanupFlags) error {
	// The report says all that would be logged.
	cleaner, err := cleanup.New(pool, strategies.All(), f.config(slog.New(slog.DiscardHandler)))
	if err != nil {
		return err
	}
	report, failed := cleaner.RunOnce(ctx)
	if errors.Is(failed, cleanup.ErrLocked) {
		skipped := newReportJSON(report)
		skipped.Skipped = true
		return a.print(skipped, "another run is under way: nothing done here\n")
	}
	if len(report.Strategies) > 0 {
		out := newReportJSON(report)
		if err := a.print(out, out.text()); err != nil {
			return err
		}
	}
	return failed
}
