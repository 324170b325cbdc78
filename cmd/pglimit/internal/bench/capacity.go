package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/scenario"
)

// CapacityConfig says what [Capacity] looks for. Its only scenario is the load; callers
// and rate of that are varied.
type CapacityConfig struct {
	Config

	P99     time.Duration // the bound
	Callers []int         // of the sweep, fewest first
}

// What a probe of an arrival rate has to keep, besides the bound.
const (
	leastServed = 0.97 // of the rate
	mostFailed  = 0.01 // of the requests
)

// The search ends when the rate is known to this share of it, or after so many probes.
const (
	closeEnough = 0.05
	maxProbes   = 12
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
				return fmt.Errorf("--sweep: %w", err)
			}
		}
	}
	return c.Config.Validate()
}

// Capacity finds for each strategy the highest rate of arrivals at which the 99th
// percentile of latency stays under a bound. First it sweeps over callers in a closed loop,
// which shows the most that there is to be had; then it bisects between nothing and that.
//
// Each probe is short, and machines are noisy: a rate is given up only after two probes in
// a row have failed at it.
func Capacity(ctx context.Context, place Place, c CapacityConfig, progress func(Progress)) (result.Report, error) {
	if err := c.Validate(); err != nil {
		return result.Report{}, err
	}
	c.NoSeries = true
	return opened(ctx, place, c.Config, progress, func(b *bench, ctx context.Context, report *result.Report) error {
		s := b.config.Scenarios[0]
		for _, strategy := range b.strategies {
			subject, err := s.Subject(strategy)
			if err != nil {
				return err
			}
			report.Capacity = append(report.Capacity, result.Capacity{Strategy: strategy.Name(), P99Bound: microseconds(int64(c.P99))})
			found := &report.Capacity[len(report.Capacity)-1]
			if err := search(ctx, c.Callers, s, found, b.prober(subject, len(c.Callers)+maxProbes)); err != nil || ctx.Err() != nil {
				return err
			}
		}
		return nil
	})
}

// prober runs a load for a short time, and returns what came of it.
type prober func(context.Context, scenario.Scenario) (result.CapacityPoint, error)

// prober of one strategy, which runs that many times at most.
func (b *bench) prober(subject scenario.Subject, most int) prober {
	number := 0
	return func(ctx context.Context, s scenario.Scenario) (result.CapacityPoint, error) {
		number++
		run, _, err := b.run(ctx, job{s, subject, 1}, Progress{Scenario: "capacity", Strategy: subject.Strategy.Name(), Number: number, Of: most})
		return pointOf(run), err
	}
}

func pointOf(run result.Run) result.CapacityPoint {
	p := result.CapacityPoint{
		DecisionsPerSecond: run.DecisionsPerSecond, P50: run.Latency.P50, P99: run.Latency.P99,
		FailedShare: round(run.FailedShare(), 6), Verdict: run.Verdict(),
	}
	if run.Audit != nil {
		p.OverTokens = run.Audit.OverTokens
	}
	return p
}

// search sweeps over callers, bisects, and puts both into found. What was found before the
// context ended stays there.
func search(ctx context.Context, callers []int, s scenario.Scenario, found *result.Capacity, probe prober) error {
	most, kept := 0.0, 0.0
	for _, n := range callers {
		closed := s
		closed.Callers, closed.Instances = n, min(s.Instances, n)
		closed.Phases = []scenario.Phase{{Length: s.Length()}}
		p, err := probe(ctx, closed)
		if err != nil || ctx.Err() != nil {
			return err
		}
		p.Callers = n
		found.Sweep = append(found.Sweep, p)
		most = max(most, p.DecisionsPerSecond)
		if p.P99 < found.P99Bound {
			kept = max(kept, p.DecisionsPerSecond)
		}
	}

	low, high, again := 0.0, most, false
	if kept == 0 || kept == most { // the sweep does not say where to begin
		kept = most / 2
	}
	for rate := kept; len(found.Probes) < maxProbes && high-low > closeEnough*high; {
		open := s
		open.Phases = []scenario.Phase{{From: rate, To: rate, Length: s.Length()}}
		p, err := probe(ctx, open)
		if err != nil || ctx.Err() != nil {
			return err
		}
		p.Rate = round(rate, 1)
		p.Kept = p.P99 > 0 && p.P99 < found.P99Bound && p.FailedShare <= mostFailed && p.DecisionsPerSecond >= leastServed*rate
		found.Probes = append(found.Probes, p)
		switch {
		case p.Kept:
			low, again = rate, false
			found.Rate = p.Rate
		case !again:
			again = true
			continue
		default:
			high, again = rate, false
		}
		rate = (low + high) / 2
	}
	return nil
}
