package scenario

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
	"github.com/pglimit/ratelimit/internal/published"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

func experiment(t *testing.T) Scenario {
	t.Helper()
	some, err := ByName(WriteUp)
	if err != nil || len(some) != 1 {
		t.Fatal(some, err)
	}
	return some[0]
}

// All times of the load change, and nothing else does.
func TestScaledTimes(t *testing.T) {
	t.Parallel()
	s := experiment(t)
	s.Warmup, s.Timeout = 10*time.Second, time.Second
	s.Latency = time.Millisecond
	got := s.Scaled(0.1)
	want := s
	want.Phases = []Phase{{10, 18 * time.Second}, {100, 18 * time.Second}, {200, 24 * time.Second}}
	want.Warmup, want.AtMost = time.Second, 30
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
	if s.Phases[0].Length != 3*time.Minute {
		t.Error("the one that was scaled has changed")
	}
	if err := got.Validate(); err != nil {
		t.Error(err)
	}
	if same := s.Scaled(1); !reflect.DeepEqual(same, s) {
		t.Errorf("times 1: %+v", same)
	}
}

// A limiter that grants at once and then every two seconds keeps the criterion, however
// long the experiment is.
func TestExactLimiterKeepsTheScaledCriterion(t *testing.T) {
	t.Parallel()
	for _, factor := range []float64{0.001, 0.0125, 0.07, 0.1, 0.14, 0.29, 0.3, 0.57, 0.7, 1, 2, 3.3} {
		s := experiment(t).Scaled(factor)
		exact := int64((s.Length().Round(time.Microsecond) + 2*time.Second - 1) / (2 * time.Second)) // at 0, 2, 4 s ...
		if s.AtMost != exact {
			t.Errorf("x %v: at most %d in %v, where an exact limiter grants %d", factor, s.AtMost, s.Length(), exact)
		}
	}
	if s := Custom().Scaled(0.5); s.AtMost != 0 {
		t.Errorf("a load without a criterion has one: %d", s.AtMost)
	}
}

// The suite does not have the write-up, and all have a name of their own.
func TestNamesOfScenarios(t *testing.T) {
	t.Parallel()
	all, err := ByName(Suite)
	if err != nil || len(all) != 7 {
		t.Errorf("%d scenarios, %v; want 7", len(all), err)
	}
	seen := map[string]bool{}
	for i, s := range all {
		if seen[s.Name] || s.Name == WriteUp {
			t.Errorf("%s is there twice, or does not belong there", s.Name)
		}
		seen[s.Name] = true
		if staged := i >= 4; staged != (s.StagesOf != "") || staged && (s.Stages != Stages{} || s.Rounds != 1) || !staged && (s.Stages != bare || s.Rounds != 0) {
			t.Errorf("%s: %+v, %d rounds", s.Name, s.Stages, s.Rounds)
		}
		if s.AtMost != 0 || s.Title == "" || s.About == "" {
			t.Errorf("%+v", s)
		}
	}
	if s := experiment(t); s.AtMost != 300 || s.Length() != 10*time.Minute || s.Stages != bare || s.Instances != 2 || s.Keys != 1 || s.Limit != pglimit.Every(2*time.Second) {
		t.Errorf("%+v is not the write-up's experiment", s)
	}
	if _, err := ByName("nosuch"); err == nil || !strings.HasPrefix(err.Error(), `there is no "nosuch", only suite, many-keys-granted, `) {
		t.Error(err)
	}
}

// What a service would be configured with.
func TestLimiterHasTheStages(t *testing.T) {
	t.Parallel()
	s := Custom()
	s.Timeout, s.Durability = time.Second, pglimit.Durable
	s.Stages = Stages{Leases: true}
	limit := pglimit.PerSecond(8)
	got := s.Limiter("name", Subject{Strategy: strategies.TokenBucket{}, Limit: limit})
	want := pglimit.Config{
		Name: "name", Limit: limit, Timeout: time.Second, Durability: pglimit.Durable, Leases: pglimit.Leases{On: true},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
	s.Timeout, s.Stages = 0, bare
	s.Stages.NoBreaker = true
	got = s.Limiter("name", Subject{Strategy: strategies.TokenBucket{}, Limit: limit})
	if !got.Combine.Off || !got.Memory.Off || got.Leases.On || !got.Breaker.Off || got.Timeout != pglimit.NoTimeout {
		t.Errorf("%+v; want no stage and no timeout", got)
	}
}

// The write-up's statements are measured by themselves, whatever the load says.
func TestPublishedStatementsHaveNoStage(t *testing.T) {
	t.Parallel()
	s := Custom()
	s.Stages.Leases = true
	for _, theirs := range published.Strategies("schema") {
		if on := s.StagesFor(theirs); !on.NoCombining || !on.NoMemory || on.Leases || !on.NoBreaker || !AsPublished(theirs) || !strings.HasPrefix(TableOf(theirs), "schema.") {
			t.Errorf("%s: %+v, table %s", theirs.Name(), on, TableOf(theirs))
		}
	}
	for _, ours := range strategies.All() {
		if on := s.StagesFor(ours); on.NoCombining || on.NoMemory || on.NoBreaker || AsPublished(ours) || TableOf(ours) != "pglimit."+ours.Name() {
			t.Errorf("%s: %+v, table %s", ours.Name(), on, TableOf(ours))
		}
	}
}

func TestDescriptionOfALoad(t *testing.T) {
	t.Parallel()
	s := Custom()
	s.CompareBy, s.AtMost, s.StagesOf = result.ByGrants, 7, "plain"
	s.Timeout, s.Warmup, s.WithRows = 1500*time.Millisecond, 250*time.Millisecond, true
	s.Stages = Stages{NoCombining: true}
	s.Latency = 2 * time.Millisecond
	got := s.Describe(1000, 9)
	want := result.Scenario{
		Name: "custom", Title: "a load of your own", About: "What the flags say.", CompareBy: result.ByGrants, AtMost: 7, StagesOf: "plain",
		Parameters: result.Parameters{
			Loop: "closed", Callers: 64, Instances: 1, Conns: 16, Keys: 20, WithRows: true, Distribution: Uniform, Limit: "20/1s", Cost: 1,
			Durability: "relaxed", TimeoutSeconds: 1.5, WarmupSeconds: 0.25, DurationSeconds: 5, AuditDecisions: 1000, Seed: 9,
			Memory: true, Breaker: true, AddedLatencySeconds: 0.002,
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
}

// Phases are told where one rate does not say it all, costs where they differ, as shares of
// one, and the exponent of zipf only.
func TestDescriptionLeavesOutWhatGoesWithoutSaying(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*Scenario)
		want   func(*result.Parameters)
	}{
		"one rate": {
			func(s *Scenario) { s.Phases = []Phase{{50, 5 * time.Second}} },
			func(p *result.Parameters) { p.Loop, p.RPS, p.Arrivals = "open", 50, Poisson },
		},
		"two rates": {
			func(s *Scenario) { s.Phases = []Phase{{50, 2 * time.Second}, {60, 3 * time.Second}} },
			func(p *result.Parameters) {
				p.Loop, p.RPS, p.Arrivals = "open", 50, Poisson
				p.Phases = []result.Phase{{Rate: 50, Seconds: 2}, {Rate: 60, Seconds: 3}}
			},
		},
		"costs": {
			func(s *Scenario) { s.Costs = []Cost{{5, 3}, {1, 9}} },
			func(p *result.Parameters) {
				p.Cost, p.Costs = 5, []result.Cost{{Tokens: 5, Share: 0.25}, {Tokens: 1, Share: 0.75}}
			},
		},
	} {
		s := Custom()
		want := s.Describe(0, 0).Parameters
		c.change(&s)
		c.want(&want)
		if got := s.Describe(0, 0).Parameters; !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v\nwant %+v", name, got, want)
		}
	}
}
