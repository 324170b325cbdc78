package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/scenario"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/wire"
)

// run measures one strategy under one scenario. number says which of the runs it is. ran says that there is a result, even with an error.
func (b *bench) run(ctx context.Context, j job, number string) (run result.Run, ran bool, err error) {
	if b.progress != nil {
		b.progress(fmt.Sprintf("%s %s, %s: %v", number, j.scenario.Name, j.subject.Strategy.Name(), j.scenario.Length()))
		defer b.progress("")
	}
	s := strategyRun{bench: b, job: j, limiter: "bench-" + b.id + "-" + j.subject.Strategy.Name(), table: scenario.TableOf(j.subject.Strategy)}
	defer b.tidy(ctx, j.scenario.Keys, func(ctx context.Context) error { return b.deleteRows(ctx, j.subject.Strategy, s.limiter) })
	defer func() { err = errors.Join(err, s.close(ctx)) }()
	if err := s.open(ctx); err != nil {
		return run, false, err
	}
	d := b.newDrive(s.instances, j)
	if j.scenario.WithRows {
		if err := s.touch(ctx, d.keys); err != nil {
			return run, false, err
		}
	}
	if j.scenario.Warmup > 0 {
		d.warmUp(ctx)
	}
	storage, err := readStorage(ctx, s.observer, s.table)
	if err != nil {
		return run, false, err
	}
	before, err := s.count(ctx)
	if err != nil {
		return run, false, err
	}
	d.measure()
	d.elapsed = d.run(ctx)

	// The rest is done also after Ctrl-C: it shows what was measured so far.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyTime)
	defer cancel()
	after, err := s.count(ctx)
	run = d.summarize(b.config.AuditDecisions)
	run.Storage, run.RoundTrips = storage, after.trips-before.trips
	run.Stages = withStages(run.Stages, after.stages.Since(before.stages))
	if err == nil {
		countWAL(&run, before, after)
	}
	return run, true, err
}

// strategyRun is the run of one strategy, with what it opened.
type strategyRun struct {
	*bench
	job

	limiter   string // its name in the database
	table     string
	meter     wire.Meter
	instances []instance
}

func (s *strategyRun) open(ctx context.Context) error {
	for range s.scenario.Instances {
		in, err := openInstance(ctx, s.place.Database, s.scenario, s.subject, s.limiter, s.application(), &s.meter)
		if err != nil {
			return err
		}
		s.instances = append(s.instances, in)
	}
	return nil
}

func (s *strategyRun) close(ctx context.Context) (failed error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyTime)
	defer cancel()
	for _, in := range s.instances {
		failed = errors.Join(failed, in.close(ctx))
	}
	return failed
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
		load:     &load{clock: newClock(), sleep: wire.Nanosleep},
		seed:     b.config.Seed,
	}
	stages := s.StagesFor(j.subject.Strategy)
	for i := range s.Callers {
		r := newRecorder(kept)
		r.history.estimated = !stages.NoMemory
		// Denials cannot be judged if tokens are missing that nobody got: leases set them aside, and making rows takes
		// some.
		if stages.Leases || s.WithRows {
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
func (d *drive) measure() {
	d.timeline = newTimeline(d.scenario.Length(), d.scenario.Callers)
	for _, r := range d.recorders {
		r.timeline = d.timeline
	}
}

func (d *drive) run(ctx context.Context) time.Duration {
	begin := d.load.clock.now()
	defer func() { d.drained = d.load.clock.now() - begin }()
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
	warm.scenario.Phases = []scenario.Phase{{Rate: d.scenario.Phases[0].Rate, Length: d.scenario.Warmup}}
	warm.run(ctx)
}
