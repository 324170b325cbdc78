package bench

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/internal/published"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Run runs the strategies, one after another, on the database, which must be
// migrated. It removes the rows that it made.
//
// A context that ends is no error: the report has what was measured so far and says that
// it was interrupted. An error may come with a report too, of the strategies before. If
// something could not be removed, that is an error, whatever else happened.
func Run(ctx context.Context, database *pgxpool.Config, source string, config Config, progress func(Progress)) (Report, error) {
	report := Report{Config: config, Server: Server{Source: source}}
	if err := config.Validate(); err != nil {
		return report, err
	}
	b := bench{
		config: config, database: database, id: newID(), progress: progress,
		keys: keyNames(config.Keys), strategies: slices.Clone(config.Strategies),
	}
	if err := b.open(ctx); err != nil {
		return report, err
	}
	defer b.observer.Close()
	err := b.runAll(ctx, &report)
	if ctx.Err() != nil && (err == nil || errors.Is(err, ctx.Err())) {
		report.Interrupted, err = true, nil
	}
	return report, errors.Join(err, b.untidy)
}

// runAll adds the result of each strategy to the report, until one fails.
func (b *bench) runAll(ctx context.Context, report *Report) (err error) {
	if report.Server.Version, err = b.check(ctx); err != nil {
		return err
	}
	if b.config.Published {
		if err := b.dropAbandoned(ctx); err != nil {
			return err
		}
		// Dropped also if making it was interrupted half-way.
		defer b.tidy(ctx, func(ctx context.Context) error { return published.Drop(ctx, rate.OnPool(b.observer), b.schema()) })
		if err := published.Create(ctx, rate.OnPool(b.observer), b.schema()); err != nil {
			return err
		}
		b.strategies = append(b.strategies, published.Strategies(b.schema())...)
	}
	plans, err := b.plans()
	if err != nil {
		return err
	}
	for i, p := range plans {
		if ctx.Err() != nil {
			return nil
		}
		result, measured, err := b.run(ctx, p, Progress{Strategy: p.strategy.Name(), Number: i + 1, Of: len(plans)})
		if measured {
			report.Runs = append(report.Runs, result)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// bench is what the runs have in common.
type bench struct {
	config     Config
	database   *pgxpool.Config
	id         string // of this bench, in every name that it makes
	keys       []string
	strategies []pglimit.Strategy
	observer   *pgxpool.Pool // reads statistics and tidies up
	untidy     error         // what could not be removed
	progress   func(Progress)
}

func newID() string {
	var id [4]byte
	rand.Read(id[:]) // it never fails
	return hex.EncodeToString(id[:])
}

// application is the application_name of every connection of the run's callers. That
// of the observer begins with it.
func (b *bench) application() string { return applicationPrefix + b.id }

func (b *bench) open(ctx context.Context) (err error) {
	config := b.database.Copy()
	config.MaxConns = 2
	config.ConnConfig.RuntimeParams["application_name"] = b.application() + " observer"
	b.observer, err = pgxpool.NewWithConfig(ctx, config)
	return err
}

// check returns the server's version. It asks each strategy something harmless, so that
// a database that is not migrated is reported before anything is measured.
func (b *bench) check(ctx context.Context) (version string, err error) {
	if err := b.observer.QueryRow(ctx, "show server_version").Scan(&version); err != nil {
		return "", err
	}
	for _, s := range b.strategies {
		request := pglimit.Request{Limiter: "bench-" + b.id, Key: warmupKey, Limit: pglimit.Every(time.Second), Unit: 1}
		if _, err := s.Take(ctx, rate.OnPool(b.observer), []pglimit.Request{request}); err != nil {
			return "", fmt.Errorf("%s: %w", s.Name(), err)
		}
	}
	return version, nil
}

func (b *bench) plans() ([]plan, error) {
	plans := make([]plan, 0, len(b.strategies))
	for _, s := range b.strategies {
		p, err := b.config.plan(s)
		if err != nil {
			return nil, err
		}
		plans = append(plans, p)
	}
	return plans, nil
}

// run measures one strategy. measured says that the result is one, also if there is an
// error.
func (b *bench) run(ctx context.Context, p plan, progress Progress) (result Result, measured bool, err error) {
	limiter := "bench-" + b.id + "-" + p.strategy.Name()
	defer b.tidy(ctx, func(ctx context.Context) error { return b.deleteRows(ctx, p.strategy, limiter) })

	instances := make([]instance, 0, b.config.Instances)
	closeAll := func() (failed error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyTime)
		defer cancel()
		for _, in := range instances {
			failed = errors.Join(failed, in.close(ctx))
		}
		instances = nil
		return failed
	}
	defer func() { err = errors.Join(err, closeAll()) }()
	for range b.config.Instances {
		in, err := openInstance(ctx, b.database, b.config, p, limiter, b.application())
		if err != nil {
			return result, false, err
		}
		instances = append(instances, in)
	}

	l, recorders := b.newLoad(instances, p)
	if b.config.Warmup > 0 {
		b.drive(ctx, l, b.config.Warmup, recorders)
	}
	if err := flushStatistics(ctx, instances, b.config.Conns); err != nil {
		return result, false, err
	}
	table := tableOf(p.strategy)
	storage, err := readStorage(ctx, b.observer, table)
	if err != nil {
		return result, false, err
	}
	var before, after reading
	if before.statistics, err = readStatistics(ctx, b.observer, table); err != nil {
		return result, false, err
	}
	if before.position, err = readPosition(ctx, b.observer); err != nil {
		return result, false, err
	}

	stages := readStages(instances)
	for _, r := range recorders {
		r.measuring = true
	}
	stopProgress := progress.follow(b.progress, b.config.Duration, recorders)
	elapsed := b.drive(ctx, l, b.config.Duration, recorders)
	stopProgress()

	// The rest is done also after Ctrl-C: it shows what was measured so far.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyTime)
	defer cancel()
	after.position, err = readPosition(ctx, b.observer)
	stagesAfter := readStages(instances)
	err = errors.Join(err, closeAll())
	result = summarize(p, b.config, recorders, b.keys, elapsed)
	result.Storage = storage
	result.Stages = result.Stages.since(stages, stagesAfter)
	if err != nil {
		return result, true, err
	}
	complete, err := awaitStatistics(ctx, b.observer, b.application())
	if err != nil {
		return result, true, err
	}
	if after.statistics, err = readStatistics(ctx, b.observer, table); err != nil {
		return result, true, err
	}
	result.Server = after.since(before, complete)
	return result, true, nil
}

// newLoad spreads the callers over the instances.
func (b *bench) newLoad(instances []instance, p plan) (*load, []*recorder) {
	kept := newBudget(b.config.AuditDecisions, b.config.Callers)
	l := &load{clock: newClock(), drain: drainTime, sleep: nanosleep}
	recorders := make([]*recorder, 0, b.config.Callers+1)
	stages := b.config.stages(p)
	for i := range b.config.Callers {
		r := newRecorder(kept)
		r.history.estimated = stages.Memory
		if stages.Leases { // an instance is denied what another has set aside, although nobody has got it
			r.history.keepNoDenials()
		}
		recorders = append(recorders, r)
		l.callers = append(l.callers, &caller{
			limiter: instances[i%len(instances)].limiter, keys: b.keys, cost: p.cost, picker: b.config.newPicker(i), recorder: r,
		})
	}
	return l, append(recorders, newRecorder(kept)) // the last is for arrivals that no caller took
}

func (b *bench) drive(ctx context.Context, l *load, length time.Duration, recorders []*recorder) time.Duration {
	if b.config.RPS > 0 {
		return l.open(ctx, length, b.config.newGaps(), recorders[len(recorders)-1])
	}
	return l.closed(ctx, length)
}
