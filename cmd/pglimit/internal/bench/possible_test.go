package bench

import (
	"testing"
	"time"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/scenario"
	"github.com/pglimit/ratelimit/pglimit"
)

func TestWhatAPerfectLimiterGrants(t *testing.T) {
	t.Parallel()
	of := func(limit pglimit.Limit, cost int64, change func(*scenario.Scenario)) int64 {
		s := openScenario(1, 10) // at 100 ms, 200 ms, ... up to a second
		s.Keys, s.Limit, s.Costs = 1, limit, []scenario.Cost{{Tokens: cost, Share: 1}}
		s.Phases[0].Length = 10*time.Second + time.Millisecond
		if change != nil {
			change(&s)
		}
		return possible(s, scenario.Subject{Limit: s.Limit, Costs: s.Costs}, 1)
	}
	for name, c := range map[string]struct{ got, want int64 }{
		"one per 2 s":                  {of(pglimit.Every(2*time.Second), 1, nil), 5},
		"one per 250 ms, every 300":    {of(pglimit.Every(250*time.Millisecond), 1, nil), 34},
		"a burst first":                {of(pglimit.PerSecond(1).WithBurst(5), 1, nil), 14},
		"less is asked for":            {of(pglimit.PerSecond(1000), 1, nil), 100},
		"cost 2 of 4/1s":               {of(pglimit.PerSecond(4).WithBurst(2), 2, nil), 40},
		"two instances, same arrivals": {of(pglimit.Every(2*time.Second), 1, func(s *scenario.Scenario) { s.Instances = 2 }), 5},
		"two keys: not known":          {of(pglimit.Every(time.Second), 1, func(s *scenario.Scenario) { s.Keys = 2 }), 0},
		"a closed loop: not known":     {of(pglimit.Every(time.Second), 1, func(s *scenario.Scenario) { s.Phases = []scenario.Phase{{Length: time.Second}} }), 0},
		"costs that differ: not known": {of(pglimit.PerSecond(5), 1, func(s *scenario.Scenario) { s.Costs = append(s.Costs, s.Costs[0]) }), 0},
		"the whole of the write-up's":  {possible(writeUp(t), scenario.Subject{Limit: writeUp(t).Limit, Costs: writeUp(t).Costs}, 1), 295},
	} {
		if c.got != c.want {
			t.Errorf("%s: %d, want %d", name, c.got, c.want)
		}
	}
}

func writeUp(t *testing.T) scenario.Scenario {
	t.Helper()
	s, err := scenario.ByName(scenario.WriteUp)
	if err != nil {
		t.Fatal(err)
	}
	return s[0]
}
