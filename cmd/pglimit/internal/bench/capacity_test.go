package bench

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/scenario"
	"github.com/pglimit/ratelimit/pglimit"
)

// machine decides up to most requests per second in a closed loop, and keeps the bound of
// 10 ms up to an arrival rate of threshold.
type machine struct {
	most, threshold float64

	probes []float64                                          // rates of arrival that were probed
	loads  []scenario.Scenario                                // all
	noise  func(probe int, p *result.CapacityPoint)           // changes what a probe of a rate shows
	end    func(probes int) error                             // an error of the probe after so many
	swept  func(s scenario.Scenario, p *result.CapacityPoint) // changes what the sweep shows
}

func (m *machine) probe(_ context.Context, s scenario.Scenario) (p result.CapacityPoint, err error) {
	m.loads = append(m.loads, s)
	if !s.Open() {
		p = result.CapacityPoint{DecisionsPerSecond: m.most * float64(s.Callers) / 256, P99: 20_000, Verdict: "exact"}
		if m.swept != nil {
			m.swept(s, &p)
		}
		return p, nil
	}
	rate := s.Phases[0].From
	p = result.CapacityPoint{DecisionsPerSecond: rate, P50: 500, P99: 2000, Verdict: "exact"}
	if rate > m.threshold {
		p.P99 = 50_000
	}
	if m.noise != nil {
		m.noise(len(m.probes), &p)
	}
	if m.end != nil {
		err = m.end(len(m.probes))
	}
	m.probes = append(m.probes, rate)
	return p, err
}

// capacityOf searches with a bound of 10 ms.
func capacityOf(ctx context.Context, m *machine) (result.Capacity, error) {
	found := result.Capacity{P99Bound: 10_000}
	err := search(ctx, []int{1, 16, 256}, capacityScenario(), &found, m.probe)
	return found, err
}

func capacityScenario() scenario.Scenario {
	s := scenario.Custom()
	s.Callers, s.Instances = 256, 4
	s.Phases = []scenario.Phase{{Length: 2 * time.Second}}
	return s
}

// What was found is a rate that was kept, and at most 5 % below one that was not.
func TestSearchFindsTheThreshold(t *testing.T) {
	t.Parallel()
	for share := 0.3; share < 1; share += 0.01 {
		m := &machine{most: 20_000, threshold: share * 20_000}
		got, err := capacityOf(t.Context(), m)
		if err != nil || got.Rate > m.threshold || got.Rate < 0.95*m.threshold-0.1 || len(got.Probes) > maxProbes {
			t.Errorf("%v, %v after %d probes; want from 0.95 x %v to that", got.Rate, err, len(got.Probes), m.threshold)
		}
		if len(got.Sweep) != 3 || got.Sweep[2].Callers != 256 || got.Sweep[2].DecisionsPerSecond != 20_000 || got.Sweep[0].Callers != 1 {
			t.Errorf("the sweep is %+v", got.Sweep)
		}
	}
}

// It begins where the sweep was still fast.
func TestSearchBeginsWhereTheSweepKeptTheBound(t *testing.T) {
	t.Parallel()
	m := &machine{most: 20_000, threshold: 1300, swept: func(s scenario.Scenario, p *result.CapacityPoint) {
		if s.Callers <= 16 {
			p.P99 = 9999
		}
	}}
	got, _ := capacityOf(t.Context(), m)
	if m.probes[0] != 1250 || got.Rate < 1250 || got.Rate > 1300 {
		t.Errorf("it began at %v, and found %v; want 1250, what 16 callers did, and up to 1300", m.probes[0], got.Rate)
	}
	m.probes, m.swept = nil, func(s scenario.Scenario, p *result.CapacityPoint) {
		if s.Callers <= 16 {
			p.P99 = 10_000 // the bound itself
		}
	}
	if _, _ = capacityOf(t.Context(), m); m.probes[0] != 10_000 {
		t.Errorf("it began at %v, want the middle", m.probes[0])
	}
	for name, p99 := range map[string]float64{"was never fast": 10_000, "was always fast": 100} {
		m := &machine{most: 20_000, threshold: 1300, swept: func(_ scenario.Scenario, p *result.CapacityPoint) { p.P99 = p99 }}
		if _, _ = capacityOf(t.Context(), m); m.probes[0] != 10_000 {
			t.Errorf("a sweep that %s: it begins at %v, want the middle", name, m.probes[0])
		}
	}
}

// Each load is the user's, except for what is varied.
func TestSearchVariesCallersAndRate(t *testing.T) {
	t.Parallel()
	m := &machine{most: 20_000, threshold: 8000}
	if _, err := capacityOf(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	for i, s := range m.loads {
		if s.Length() != 2*time.Second || len(s.Phases) != 1 {
			t.Errorf("load %d lasts %v", i, s.Length())
		}
		if err := s.Validate(); err != nil {
			t.Errorf("load %d: %v", i, err)
		}
		switch {
		case i == 0 && (s.Open() || s.Callers != 1 || s.Instances != 1), i == 1 && (s.Open() || s.Callers != 16 || s.Instances != 4):
			t.Errorf("load %d of the sweep is %+v", i, s)
		case i > 2 && (!s.Open() || s.Callers != 256 || s.Instances != 4 || s.Phases[0].From != s.Phases[0].To):
			t.Errorf("load %d is %+v, want arrivals at one rate and all callers", i, s)
		}
	}
}

// One bad probe does not give up a rate: a machine is noisy. Two in a row do.
func TestSearchProbesAgainAfterAFailure(t *testing.T) {
	t.Parallel()
	for noisy := range 4 {
		m := &machine{most: 20_000, threshold: 1e9}
		m.noise = func(probe int, p *result.CapacityPoint) {
			if probe == noisy {
				p.P99 = 500_000
			}
		}
		got, _ := capacityOf(t.Context(), m)
		if got.Rate < 0.95*20_000 || m.probes[noisy+1] != m.probes[noisy] {
			t.Errorf("probe %d failed: %v found, by %v; want 20,000 and that rate again", noisy, got.Rate, m.probes)
		}
	}
	// Failures of different rates are no two in a row.
	m := &machine{most: 20_000, threshold: 1e9}
	m.noise = func(probe int, p *result.CapacityPoint) {
		if probe == 0 || probe == 2 {
			p.P99 = 500_000
		}
	}
	if got, _ := capacityOf(t.Context(), m); got.Rate < 0.95*20_000 {
		t.Errorf("%v found, by %v; want 20,000", got.Rate, m.probes)
	}
}

// A rate is kept if latency, errors and throughput are as they must be.
func TestProbeIsKeptOrNot(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*result.CapacityPoint)
		kept   bool
	}{
		"fast":             {func(*result.CapacityPoint) {}, true},
		"just fast":        {func(p *result.CapacityPoint) { p.P99 = 9999.9 }, true},
		"as slow as it is": {func(p *result.CapacityPoint) { p.P99 = 10_000 }, false},
		"few fail":         {func(p *result.CapacityPoint) { p.FailedShare = 0.01 }, true},
		"some fail":        {func(p *result.CapacityPoint) { p.FailedShare = 0.011 }, false},
		"nearly served":    {func(p *result.CapacityPoint) { p.DecisionsPerSecond *= 0.971 }, true},
		"falling behind":   {func(p *result.CapacityPoint) { p.DecisionsPerSecond *= 0.96 }, false},
		"nothing decided":  {func(p *result.CapacityPoint) { p.P99 = 0 }, false},
	} {
		m := &machine{most: 20_000, threshold: 1e9, noise: func(_ int, p *result.CapacityPoint) { c.change(p) }}
		got, _ := capacityOf(t.Context(), m)
		if got.Probes[0].Kept != c.kept || got.Probes[0].Rate != 10_000 || (got.Rate > 0) != c.kept {
			t.Errorf("%s: %+v, and %v found; want kept: %v", name, got.Probes[0], got.Rate, c.kept)
		}
	}
}

func TestSearchFindsNothing(t *testing.T) {
	t.Parallel()
	if got, err := capacityOf(t.Context(), &machine{most: 20_000}); err != nil || got.Rate != 0 || len(got.Probes) != maxProbes {
		t.Errorf("%v, %v after %d probes of a machine that keeps no rate; want 0 after all probes", got.Rate, err, len(got.Probes))
	}
	if got, err := capacityOf(t.Context(), &machine{}); err != nil || got.Rate != 0 || len(got.Probes) != 0 || len(got.Sweep) != 3 {
		t.Errorf("%+v, %v of a machine that decides nothing; want a sweep and no probe", got, err)
	}
}

// What was found so far is kept, and the probe that was cut short is not.
func TestSearchEndsEarly(t *testing.T) {
	t.Parallel()
	failed := errors.New("the server is gone")
	for name, fails := range map[string]bool{"an error": true, "Ctrl-C": false} {
		ctx, interrupt := context.WithCancel(t.Context())
		m := &machine{most: 20_000, threshold: 1e9}
		m.end = func(probes int) error {
			switch {
			case probes < 2:
				return nil
			case fails:
				return failed
			}
			interrupt()
			return nil
		}
		got, err := capacityOf(ctx, m)
		if len(m.probes) != 3 || len(got.Probes) != 2 || got.Rate != 15_000 || fails != errors.Is(err, failed) {
			t.Errorf("%s: %v, found %v after %d of %d probes; want 15,000 after 2 of 3", name, err, got.Rate, len(got.Probes), len(m.probes))
		}
		interrupt()
	}
	// In the sweep too.
	ctx, interrupt := context.WithCancel(t.Context())
	m := &machine{most: 20_000, threshold: 1e9, swept: func(scenario.Scenario, *result.CapacityPoint) { interrupt() }}
	if got, err := capacityOf(ctx, m); err != nil || len(got.Sweep) != 0 || len(m.loads) != 1 {
		t.Errorf("%v, %+v", err, got)
	}
}

func TestCapacityErrorsNameTheFlag(t *testing.T) {
	t.Parallel()
	valid := func() CapacityConfig {
		return CapacityConfig{
			Config: Config{Scenarios: []scenario.Scenario{capacityScenario()}, Strategies: []pglimit.Strategy{fake{name: "any"}}, Rounds: 1},
			P99:    10 * time.Millisecond, Callers: []int{1, 256},
		}
	}
	if err := valid().Validate(); err != nil {
		t.Error(err) // also of one caller, of whom there are no four instances
	}
	for want, change := range map[string]func(*CapacityConfig){
		"--p99 is 99µs: it must be from 100µs":       func(c *CapacityConfig) { c.P99 = 99 * time.Microsecond },
		"--p99 is 1h0m0s: it must be":                func(c *CapacityConfig) { c.P99 = time.Hour },
		"--sweep: --callers is 0":                    func(c *CapacityConfig) { c.Callers = []int{1, 0} },
		"--sweep: --callers is 1000000":              func(c *CapacityConfig) { c.Callers = []int{1_000_000} },
		"--keys is 0":                                func(c *CapacityConfig) { c.Callers, c.Scenarios[0].Keys = nil, 0 },
		"--strategies names none: name at least one": func(c *CapacityConfig) { c.Strategies = nil },
	} {
		c := valid()
		change(&c)
		if err := c.Validate(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s...", err, want)
		}
	}
}

// Of rates whose threshold is low, the probes do not suffice: what is found is kept all the
// same, and not more than a probe away.
func TestSearchOfALowThreshold(t *testing.T) {
	t.Parallel()
	for _, share := range []float64{0.03, 0.1, 0.2} {
		m := &machine{most: 20_000, threshold: share * 20_000}
		if got, _ := capacityOf(t.Context(), m); got.Rate > m.threshold || math.Abs(got.Rate-m.threshold) > 0.5*m.threshold {
			t.Errorf("%v, want about %v", got.Rate, m.threshold)
		}
	}
}

func TestPointOfARun(t *testing.T) {
	t.Parallel()
	run := result.Run{
		Decisions: 3, DecisionsPerSecond: 100, Errors: map[string]int64{"timeout": 1},
		Latency: result.Latency{P50: 5, P99: 50}, Audit: &result.Audit{Verdict: "OVER by 2", OverTokens: 2},
	}
	want := result.CapacityPoint{DecisionsPerSecond: 100, P50: 5, P99: 50, FailedShare: 0.25, Verdict: "OVER by 2", OverTokens: 2}
	if got := pointOf(run); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	run.Audit, run.Errors = nil, nil
	if got := pointOf(run); got.Verdict != "not audited" || got.OverTokens != 0 || got.FailedShare != 0 {
		t.Errorf("%+v", got)
	}
}
