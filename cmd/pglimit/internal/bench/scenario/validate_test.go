package scenario

import (
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
)

func TestBuiltInScenariosAreValid(t *testing.T) {
	t.Parallel()
	for _, s := range append(BuiltIn(), Custom()) {
		if err := s.Validate(); err != nil {
			t.Errorf("%s: %v", s.Name, err)
		}
		for _, strategy := range strategies.All() {
			if _, err := s.Subject(strategy); err != nil {
				t.Errorf("%s: %v", s.Name, err)
			}
		}
		if s.StagesOf == "" {
			continue
		}
		plain, err := ByName(s.StagesOf)
		if err != nil {
			t.Error(err)
			continue
		}
		same := plain[0]
		same.Name, same.Title, same.StagesOf, same.Stages, same.Once = s.Name, s.Title, s.StagesOf, s.Stages, s.Once
		if !reflect.DeepEqual(same, s) {
			t.Errorf("%s is another load than %s:\n%+v\n%+v", s.Name, s.StagesOf, s, same)
		}
	}
}

func TestErrorsNameTheField(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*Scenario){
		"limit: tokens is 0: it must be":                                  func(s *Scenario) { s.Limit.Tokens = 0 },
		"cost is 21: it must be from 1 to 20, the burst of 20/1s":         func(s *Scenario) { s.Costs = []Cost{{1, 1}, {21, 1}} },
		"costs: the number of entries is 0":                               func(s *Scenario) { s.Costs = nil },
		"keys is 0":                                                       func(s *Scenario) { s.Keys = 0 },
		"instances is 65: it must be from 1 to 64, the number of callers": func(s *Scenario) { s.Instances = 65 },
		`distribution is "normal"`:                                        func(s *Scenario) { s.Distribution = "normal" },
		"exponent is 1: it must be":                                       func(s *Scenario) { s.Distribution, s.Exponent = Zipf, 1 },
		`arrivals is "late"`:                                              func(s *Scenario) { s.Arrivals = "late" },
		"rps is NaN":                                                      func(s *Scenario) { s.Phases[0].Rate = math.NaN() },
		"duration is 0s":                                                  func(s *Scenario) { s.Phases[0].Length = 0 },
		"phases has none":                                                 func(s *Scenario) { s.Phases = nil },
		"phases: some have a rate":                                        func(s *Scenario) { s.Phases = []Phase{{1, time.Second}, {0, time.Second}} },
	} {
		s := Custom()
		change(&s)
		if err := s.Validate(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s...", err, want)
		}
	}
}

// exclusion_range keeps a burst of 1 only: it runs at the same rate of requests.
func TestStrategyThatRefusesTheLimitGetsABurstOfOne(t *testing.T) {
	t.Parallel()
	s := Custom()
	s.Limit, s.Costs = pglimit.PerSecond(1000).WithBurst(50), []Cost{{5, 1}}
	got, err := s.Subject(strategies.ExclusionRange{})
	want := pglimit.Limit{Tokens: 1000, Period: 5 * time.Second, Burst: 1}
	if err != nil || got.Limit != want || got.Costs[0].Tokens != 1 {
		t.Errorf("%v of cost %v, %v; want %v of cost 1", got.Limit, got.Costs, err, want)
	}
	if got, err = s.Subject(strategies.TokenBucket{}); err != nil || got.Limit != s.Limit || got.Costs[0].Tokens != 5 {
		t.Errorf("%v of cost %v, %v; want what was configured", got.Limit, got.Costs, err)
	}
	s.Costs = append(s.Costs, Cost{1, 1})
	if _, err = s.Subject(strategies.ExclusionRange{}); err == nil || !strings.Contains(err.Error(), "leave it out of --strategies") {
		t.Errorf("%v, want that requests which differ cannot be adapted", err)
	}
	month := s
	month.Limit, month.Costs = pglimit.PerMonth(1000), s.Costs[:1]
	for _, strategy := range strategies.All()[1:] {
		if got, err := month.Subject(strategy); err == nil || !strings.Contains(err.Error(), "windows of the calendar") {
			t.Errorf("%s runs under %v, %v: it cannot count by the month", strategy.Name(), got.Limit, err)
		}
	}
	s.Limit.Period = math.MaxInt64
	if _, err = s.Subject(never{}); err == nil || !strings.Contains(err.Error(), "never") {
		t.Errorf("%v, want the strategy's own error", err)
	}
}

// never accepts no limit.
type never struct{ pglimit.Strategy }

func (never) Name() string { return "none" }

func (never) Check(*rate.Request) error { return errors.New("never") }
