package scenario

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

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

// The phases change, and the criterion.
func TestScaledTimes(t *testing.T) {
	t.Parallel()
	s := experiment(t)
	s.Warmup, s.Timeout = 10*time.Second, time.Second
	s.Latency = time.Millisecond
	got := s.lasting(time.Minute)
	want := s
	want.Phases = []Phase{{10, 18 * time.Second}, {100, 18 * time.Second}, {200, 24 * time.Second}}
	want.AtMost = 30
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
	if s.Phases[0].Length != 3*time.Minute {
		t.Error("the one that was scaled has changed")
	}
	if err := got.Validate(); err != nil {
		t.Error(err)
	}
	if same := s.lasting(s.Length()); !reflect.DeepEqual(same, s) {
		t.Errorf("times 1: %+v", same)
	}
}

// A limiter that grants at once and then every two seconds keeps the criterion, however
// long the experiment is.
func TestExactLimiterKeepsTheScaledCriterion(t *testing.T) {
	t.Parallel()
	for _, factor := range []float64{0.001, 0.0125, 0.07, 0.1, 0.14, 0.29, 0.3, 0.57, 0.7, 1, 2, 3.3} {
		s := experiment(t).lasting(time.Duration(factor * float64(10*time.Minute)))
		exact := int64((s.Length().Round(time.Microsecond) + 2*time.Second - 1) / (2 * time.Second)) // at 0, 2, 4 s ...
		if s.AtMost != exact {
			t.Errorf("x %v: at most %d in %v, where an exact limiter grants %d", factor, s.AtMost, s.Length(), exact)
		}
	}
	if s := Custom().lasting(time.Second); s.AtMost != 0 {
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
		if staged := i >= 4; staged != (s.StagesOf != "") || staged && (s.Stages != Stages{} || !s.Once) || !staged && (s.Stages != bare || s.Once) {
			t.Errorf("%s: %+v, once: %v", s.Name, s.Stages, s.Once)
		}
		if s.AtMost != 0 || s.Title == "" {
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

// A report has the fields of a plan, and says what only loads with a name have.
func TestScenarioInAReport(t *testing.T) {
	t.Parallel()
	for _, want := range append(BuiltIn(), Custom()) {
		want.Once = false
		want.Timeout, want.WithRows, want.Durability, want.Costs = 1500*time.Millisecond, true, pglimit.Durable, []Cost{{5, 3}, {1, 9}}
		text, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		var got Scenario
		if err := json.Unmarshal(text, &got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%v: %+v\nwant %+v\n%s", err, got, want, text)
		}
		if !strings.Contains(string(text), `"timeout":"1.5s"`) {
			t.Errorf("it is not like a plan: %s", text)
		}
	}
	var s Scenario
	if err := json.Unmarshal([]byte(`{"name": "of an earlier program"}`), &s); err == nil {
		t.Error("a load without a limit was read")
	}
}

func TestLoadInWords(t *testing.T) {
	t.Parallel()
	s := Custom()
	s.Timeout, s.WithRows, s.Latency, s.Distribution = 1500*time.Millisecond, true, 2*time.Millisecond, Zipf
	s.Phases, s.Costs = []Phase{{50, 2 * time.Second}, {60, 3 * time.Second}}, []Cost{{5, 1}, {1, 9}}
	want := "open loop, poisson arrivals: 50/s for 2s, 60/s for 3s; at most 64 at once; 1 instance of 16 connections; " +
		"20 keys of 20/1s (zipf 1.1); each with a row; cost 5 with a share of 1; cost 1 with a share of 9; relaxed; timeout 1.5s; " +
		"combining and memory of denials; 2ms added to each round trip; 5s after 500ms of warm-up"
	if got := s.Words(); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}
