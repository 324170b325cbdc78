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

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/scenario"
	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/internal/published"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Run puts the strategies under each scenario, one after another, on the database, which
// must be migrated. It removes the rows that it made. progress gets a line when a run begins, and an empty one when it
// is over; it may be nil.
//
// A context that ends is no error: the report has what was measured so far and says that
// it was interrupted. An error may come with a report too, of the runs before. If
// something could not be removed, that is an error, whatever else happened.
func Run(ctx context.Context, place Place, config Config, progress func(string)) (result.Report, error) {
	report := result.Report{
		Command: config.Command, Started: time.Now().UTC().Truncate(time.Second),
		Server: result.Server{Source: place.Source}, Client: describeClient(config.Version),
		Scenarios: config.Scenarios, Seed: config.Seed, AuditDecisions: config.AuditDecisions,
	}
	if err := config.Validate(); err != nil {
		return report, err
	}
	b := bench{config: config, place: place, id: newID(), progress: progress, strategies: slices.Clone(config.Strategies)}
	if err := b.open(ctx); err != nil {
		return report, err
	}
	defer b.observer.Close()
	err := b.prepare(ctx, &report)
	switch {
	case err != nil:
	case config.Capacity:
		err = b.searchAll(ctx, &report)
	default:
		err = b.runAll(ctx, &report)
	}
	if slices.ContainsFunc(b.strategies, scenario.AsPublished) {
		b.tidy(ctx, 0, func(ctx context.Context) error { return published.Drop(ctx, postgres.OnPool(b.observer), b.schema()) })
	}
	if ctx.Err() != nil && (err == nil || errors.Is(err, ctx.Err())) {
		report.Interrupted, err = true, nil
	}
	return report, errors.Join(err, b.untidy)
}

// prepare describes the server and makes the write-up's tables.
func (b *bench) prepare(ctx context.Context, report *result.Report) (err error) {
	if report.Server, err = describeServer(ctx, b.observer, b.place.Source); err != nil {
		return err
	}
	if err := b.check(ctx); err != nil {
		return err
	}
	if !slices.ContainsFunc(b.strategies, scenario.AsPublished) {
		return nil
	}
	b.own()
	return published.Create(ctx, postgres.OnPool(b.observer), b.schema())
}

// own has the statements of the write-up use tables of this bench.
func (b *bench) own() {
	for _, theirs := range published.Strategies(b.schema()) {
		for i, s := range b.strategies {
			if s.Name() == theirs.Name() {
				b.strategies[i] = theirs
			}
		}
	}
}

// job is one run that is to be done.
type job struct {
	scenario scenario.Scenario
	subject  scenario.Subject
	round    int
}

// runAll adds the result of each run to the report, until one fails.
func (b *bench) runAll(ctx context.Context, report *result.Report) error {
	jobs, err := b.jobs()
	if err != nil {
		return err
	}
	for i, j := range jobs {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // what ends the context is no error: see Run
		}
		run, ran, err := b.run(ctx, j, fmt.Sprintf("%d/%d", i+1, len(jobs)))
		if ran {
			run.Round = j.round
			report.Runs = append(report.Runs, run)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// jobs are the runs in their order: all scenarios and strategies, then all of them again. So a temporary slowdown of
// the machine does not affect only one of them.
func (b *bench) jobs() (jobs []job, err error) {
	for round := 1; round <= b.config.Rounds; round++ {
		for _, s := range b.config.Scenarios {
			if s.Once && round > 1 {
				continue
			}
			for _, strategy := range b.strategies {
				if s.StagesOf != "" && scenario.AsPublished(strategy) { // they have no stages
					continue
				}
				subject, err := s.Subject(strategy)
				if err != nil {
					return nil, err
				}
				jobs = append(jobs, job{s, subject, round})
			}
		}
	}
	return jobs, nil
}

// bench is shared by the runs.
type bench struct {
	config     Config
	place      Place
	id         string // of this bench, in every name that it makes
	strategies []pglimit.Strategy
	observer   *pgxpool.Pool // reads statistics and tidies up
	untidy     error         // what could not be removed
	progress   func(string)
}

func newID() string {
	var id [4]byte
	rand.Read(id[:]) // it never fails
	return hex.EncodeToString(id[:])
}

// application is the application_name of every connection of the run's callers. That
// of the observer begins with it.
func (b *bench) application() string { return "pglimit bench " + b.id }

func (b *bench) open(ctx context.Context) (err error) {
	config := b.place.Database.Copy()
	config.MaxConns = 2
	config.ConnConfig.RuntimeParams["application_name"] = b.application() + " observer"
	b.observer, err = pgxpool.NewWithConfig(ctx, config)
	return err
}

// check makes a harmless request with each strategy, so that a database that is not migrated is reported before
// anything is measured.
func (b *bench) check(ctx context.Context) error {
	var there []pglimit.Strategy
	var missing error
	for _, s := range b.strategies {
		if scenario.AsPublished(s) { // its tables are still to be made
			there = append(there, s)
			continue
		}
		request := rate.Request{Limiter: "bench-" + b.id, Key: warmupKey, Limit: pglimit.Every(time.Second), Unit: 1}
		_, err := s.Take(ctx, postgres.OnPool(b.observer), []rate.Request{request})
		switch {
		case err == nil:
			there = append(there, s)
		case b.config.SkipMissing && errors.Is(err, pglimit.ErrNotMigrated):
			missing = err
		default:
			return fmt.Errorf("%s: %w", s.Name(), err)
		}
	}
	if b.strategies = there; len(there) == 0 {
		return missing
	}
	return nil
}
