package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/scenario"
	"github.com/pglimit/ratelimit/pglimit"
)

// The conditions for a probe of an arrival rate, besides the bound.
const (
	leastServed = 0.97 // of the arrivals, before the end
	mostFailed  = 0.01 // of the requests
)

// The search ends when the rate is known to this share of it, or after that many rates.
const (
	closeEnough = 0.05
	maxRates    = 12
)

// searchAll adds the capacity of each strategy to the report, until one fails.
func (b *bench) searchAll(ctx context.Context, report *result.Report) error {
	for _, strategy := range b.strategies {
		found := result.Capacity{Strategy: strategy.Name(), P99Bound: microseconds(int64(b.config.P99))}
		err := b.search(ctx, strategy, &found)
		report.Capacity = append(report.Capacity, found)
		if err != nil {
			return err
		}
	}
	return nil
}

// search begins with half of what a closed loop makes, doubles that until it is too much, and then bisects.
//
// Each probe is short, and machines are noisy: a rate is given up only after two probes in a row have failed at it.
func (b *bench) search(ctx context.Context, strategy pglimit.Strategy, found *result.Capacity) error {
	s := b.config.Scenarios[0]
	subject, err := s.Subject(strategy)
	if err != nil {
		return err
	}
	probe := func(rate float64) (result.Probe, error) {
		s.Phases = []scenario.Phase{{Rate: rate, Length: s.Length()}}
		run, _, err := b.run(ctx, job{s, subject, 1}, fmt.Sprintf("probe %d", len(found.Probes)+1))
		if err == nil {
			err = ctx.Err() // a run that ended sooner shows nothing
		}
		p := result.Probe{
			Rate: round(rate, 1), DecisionsPerSecond: run.DecisionsPerSecond, P99: run.Latency.P99, FailedShare: round(run.FailedShare(), 6),
		}
		if run.Over() {
			p.OverTokens = run.Audit.OverTokens
		}
		p.Kept = rate > 0 && p.P99 > 0 && p.P99 < found.P99Bound && p.FailedShare <= mostFailed && served(run, b.config.P99)
		if err == nil {
			found.Probes = append(found.Probes, p)
		}
		return p, err
	}
	closed, err := probe(0)
	if err != nil || closed.DecisionsPerSecond == 0 {
		return err
	}
	found.Rate, err = highestRate(closed.DecisionsPerSecond/2, func(rate float64) (kept bool, err error) {
		p, err := probe(rate)
		return p.Kept, err
	})
	found.Rate = round(found.Rate, 1)
	return err
}

// served says whether the answers kept up with the arrivals. Actual arrivals are counted: at 100 per second, one in
// three runs of 2 s has 3 % fewer, and always the same with the same seed. Arrivals of the last moment, at most a tenth
// of the run, cannot have been answered yet.
func served(run result.Run, bound time.Duration) bool {
	arrived := float64(run.Decisions + run.Failed())
	if run.Seconds <= 0 {
		return false
	}
	underWay := arrived * min(bound.Seconds()/run.Seconds, 0.1)
	return run.DecisionsPerSecond*run.Seconds >= leastServed*arrived-underWay
}

// highestRate doubles the rate until it is too much, and then bisects. It returns 0 if none was kept.
func highestRate(rate float64, probe func(rate float64) (kept bool, err error)) (highest float64, err error) {
	tooMuch := 0.0
	for range maxRates {
		if rate > scenario.MaxRPS {
			return highest, nil
		}
		kept, err := probe(rate)
		if err == nil && !kept {
			kept, err = probe(rate)
		}
		if err != nil {
			return highest, err
		}
		if kept {
			highest = rate
		} else {
			tooMuch = rate
		}
		switch {
		case tooMuch == 0:
			rate *= 2
		case tooMuch-highest <= closeEnough*tooMuch:
			return highest, nil
		default:
			rate = (highest + tooMuch) / 2
		}
	}
	return highest, nil
}
