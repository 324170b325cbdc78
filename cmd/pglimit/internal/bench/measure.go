package bench

import (
	"context"
	"errors"
	"time"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/scenario"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/wire"
)

// run measures one strategy under one scenario. ran says that the result is one, also if
// there is an error.
func (b *bench) run(ctx context.Context, j job, progress Progress) (run result.Run, ran bool, err error) {
	limiter := "bench-" + b.id + "-" + j.subject.Strategy.Name()
	defer b.tidy(ctx, func(ctx context.Context) error { return b.deleteRows(ctx, j.subject.Strategy, limiter) })

	meter := &wire.Meter{}
	instances := make([]instance, 0, j.scenario.Instances)
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
	for range j.scenario.Instances {
		in, err := openInstance(ctx, b.place.Database, j.scenario, j.subject, limiter, b.application(), meter)
		if err != nil {
			return run, false, err
		}
		instances = append(instances, in)
	}

	d := b.newDrive(instances, j)
	if j.scenario.Warmup > 0 {
		d.warmUp(ctx)
	}
	if err := flushStatistics(ctx, instances, j.scenario.Conns); err != nil {
		return run, false, err
	}
	table := scenario.TableOf(j.subject.Strategy)
	storage, err := readStorage(ctx, b.observer, table)
	if err != nil {
		return run, false, err
	}
	var before, after reading
	if before.statistics, err = readStatistics(ctx, b.observer, table); err != nil {
		return run, false, err
	}
	statementsBefore := readStatements(ctx, b.observer)
	if before.position, err = readPosition(ctx, b.observer); err != nil {
		return run, false, err
	}
	trips, stages := meter.Count(), readStages(instances)

	d.measure(!b.config.NoSeries)
	stopProgress := progress.follow(b.progress, j.scenario.Length(), d.timeline.decisions)
	stopSamples := func() []sample { return nil }
	if !b.config.NoSeries {
		stopSamples = follow(ctx, d.timeline.width, len(d.timeline.slots), func(ctx context.Context) sample {
			return takeSample(ctx, b.observer, func() int64 { return meter.Count().Trips })
		})
	}
	stopTrouble := b.trouble(ctx, j, limiter, d.keys)
	d.elapsed = d.run(ctx)
	troubled, troubleFailed := stopTrouble()
	stopProgress()
	d.samples = stopSamples()

	// The rest is done also after Ctrl-C: it shows what was measured so far.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyTime)
	defer cancel()
	after.position, err = readPosition(ctx, b.observer)
	did := readStages(instances).Since(stages)
	roundTrips := meter.Count().Since(trips).Trips
	statementsAfter := readStatements(ctx, b.observer)
	err = errors.Join(err, troubleFailed, closeAll())
	run = d.summarize(b.config.AuditDecisions)
	run.Stages = withStages(run.Stages, did)
	run.RoundTrips = roundTrips
	run.Trouble = troubled
	if storage != "" {
		run.Storage = &storage
	}
	if statementsBefore != nil {
		run.Statements = statementsAfter.since(statementsBefore)
	}
	if err != nil {
		return run, true, err
	}
	complete, err := awaitStatistics(ctx, b.observer, b.application())
	if err != nil {
		return run, true, err
	}
	if after.statistics, err = readStatistics(ctx, b.observer, table); err != nil {
		return run, true, err
	}
	after.since(before, complete, &run)
	return run, true, nil
}

// drive is a load with its callers.
type drive struct {
	measured

	load *load
	left []*recorder // for arrivals that no caller took, one for each instance
	seed uint64
}

// newDrive spreads the callers over the instances.
func (b *bench) newDrive(instances []instance, j job) *drive {
	s := j.scenario
	kept := newBudget(b.config.AuditDecisions, s.Callers)
	d := &drive{
		measured: measured{scenario: s, subject: j.subject, keys: keyNames(s.Keys)},
		load:     &load{clock: newClock(), drain: drainTime, sleep: nanosleep},
		seed:     b.config.Seed,
	}
	stages := s.StagesFor(j.subject.Strategy)
	for i := range s.Callers {
		r := newRecorder(kept)
		r.history.estimated = !stages.NoMemory
		if stages.Leases { // an instance is denied what another has set aside, although nobody has got it
			r.history.keepNoDenials()
		}
		d.recorders = append(d.recorders, r)
		in := i % len(instances)
		d.load.callers = append(d.load.callers, &caller{
			instance: in, limiter: instances[in].limiter, keys: d.keys, costs: j.subject.Costs,
			picker: newPicker(s, j.subject.Costs, b.config.Seed, i), recorder: r,
		})
	}
	for range instances {
		d.left = append(d.left, newRecorder(kept))
	}
	d.recorders = append(d.recorders, d.left...)
	return d
}

// measure has everything counted from now on.
func (d *drive) measure(series bool) {
	d.timeline = newTimeline(d.scenario.Length(), d.scenario.Callers, series)
	for _, r := range d.recorders {
		r.timeline = d.timeline
	}
}

func (d *drive) run(ctx context.Context) time.Duration {
	if !d.scenario.Open() {
		return d.load.closed(ctx, d.scenario.Length())
	}
	var schedules []*schedule
	for i := range d.left {
		schedules = append(schedules, newSchedule(d.scenario, d.seed, i))
	}
	return d.load.open(ctx, d.scenario.Length(), schedules, d.left)
}

// warmUp runs the beginning of the load.
func (d *drive) warmUp(ctx context.Context) {
	warm := *d
	warm.scenario.Phases = []scenario.Phase{{From: d.scenario.Phases[0].From, To: d.scenario.Phases[0].From, Length: d.scenario.Warmup}}
	if warm.scenario.Phases[0].From == 0 && d.scenario.Open() { // a ramp from nothing
		return
	}
	warm.run(ctx)
}
