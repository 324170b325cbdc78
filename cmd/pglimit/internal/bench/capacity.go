package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/scenario"
)

// CapacityConfig says what [Capacity] looks for. Its only scenario is the load, whose callers and rate are varied.
type CapacityConfig struct {
	Config

	P99     time.Duration // the bound
	Callers []int         // of the sweep, fewest first
}

// The conditions for a probe of an arrival rate, besides the bound.
const (
	leastServed = 0.97 // of the arrivals, before the end
	mostFailed  = 0.01 // of the requests
)

// The search ends when the rate is known to this share of it, or after that many probes.
const (
	closeEnough = 0.05
	maxProbes   = 16
)

// Validate returns an error that names the flag, its value and what is allowed.
func (c CapacityConfig) Validate() error {
	if c.P99 < 100*time.Microsecond || c.P99 > longestLatency {
		return fmt.Errorf("--p99 is %v: it must be from 100µs to %v", c.P99, longestLatency)
	}
	for _, s := range c.Scenarios {
		for _, callers := range c.Callers {
			s.Callers = callers
			s.Instances = min(s.Instances, callers)
			if err := s.Validate(); err != nil {
				return err
			}
		}
	}
	return c.Config.Validate()
}

// Capacity finds for each strategy the highest rate of arrivals at which the 99th percentile of latency stays under a
// bound. First it tries different numbers of callers in a closed loop, which gives a rough maximum. Then it bisects
// between zero and the lowest rate that was too much.
//
// Each probe is short, and machines are noisy: a rate is given up only after two probes in a row have failed at it.
func Capacity(ctx context.Context, place Place, c CapacityConfig, progress func(Progress)) (result.Report, error) {
	if err := c.Validate(); err != nil {
		return result.Report{}, err
	}
	return opened(ctx, place, c.Config, progress, func(b *bench, ctx context.Context, report *result.Report) error {
		s := b.config.Scenarios[0]
		for _, strategy := range b.strategies {
			subject, err := s.Subject(strategy)
			if err != nil {
				return err
			}
			report.Capacity = append(report.Capacity, result.Capacity{Strategy: strategy.Name(), P99Bound: microseconds(int64(c.P99))})
			found := &report.Capacity[len(report.Capacity)-1]
			if err := b.search(ctx, c, s, subject, found); err != nil || ctx.Err() != nil {
				return err
			}
		}
		return nil
	})
}

func (b *bench) search(ctx context.Context, c CapacityConfig, s scenario.Scenario, subject scenario.Subject, found *result.Capacity) error {
	number, of := 0, len(c.Callers)+maxProbes
	point := func(s scenario.Scenario) (result.CapacityPoint, result.Run, error) {
		number++
		run, _, err := b.run(ctx, job{s, subject, 1}, Progress{Scenario: "capacity", Strategy: subject.Strategy.Name(), Number: number, Of: of})
		p := result.CapacityPoint{
			DecisionsPerSecond: run.DecisionsPerSecond, P50: run.Latency.P50, P99: run.Latency.P99,
			FailedShare: round(run.FailedShare(), 6), Verdict: run.Verdict(),
		}
		if run.Over() {
			p.OverTokens = run.Audit.OverTokens
		}
		return p, run, err
	}

	most, kept := 0.0, 0.0
	for _, callers := range c.Callers {
		closed := s
		closed.Callers, closed.Instances = callers, min(s.Instances, callers)
		closed.Phases = []scenario.Phase{{Length: s.Length()}}
		p, _, err := point(closed)
		if err != nil || ctx.Err() != nil {
			return err
		}
		p.Callers = callers
		found.Sweep = append(found.Sweep, p)
		most = max(most, p.DecisionsPerSecond)
		if p.P99 < found.P99Bound {
			kept = max(kept, p.DecisionsPerSecond)
		}
	}

	if kept == 0 || kept == most { // the sweep does not say where to begin
		kept = most / 2
	}
	return highestRate(kept, most, func(rate float64) (kept, goOn bool, err error) {
		open := s
		open.Phases = []scenario.Phase{{From: rate, To: rate, Length: s.Length()}}
		p, run, err := point(open)
		if err != nil || ctx.Err() != nil {
			return false, false, err
		}
		p.Rate = round(rate, 1)
		p.Kept = p.P99 > 0 && p.P99 < found.P99Bound && p.FailedShare <= mostFailed && served(run, c.P99)
		found.Probes = append(found.Probes, p)
		if p.Kept {
			found.Rate = p.Rate
		}
		return p.Kept, rate <= scenario.MaxRPS/2, nil
	})
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

// highestRate bisects between zero and the lowest rate that was not kept. It starts at most. If that is kept there is
// more, as with too few callers in the sweep.
func highestRate(begin, most float64, probe func(rate float64) (kept, goOn bool, err error)) error {
	low, high, tooMuch, again := 0.0, most, false, false
	rate := begin
	for range maxProbes {
		if rate == 0 || tooMuch && high-low <= closeEnough*high {
			return nil
		}
		kept, goOn, err := probe(rate)
		if err != nil || !goOn {
			return err
		}
		switch {
		case !kept && !again:
			again = true
			continue
		case kept:
			low = rate
		default:
			high, tooMuch = rate, true
		}
		again = false
		switch {
		case tooMuch:
			rate = (low + high) / 2
		case low < high:
			rate = high
		default:
			high *= 2
			rate = high
		}
	}
	return nil
}
