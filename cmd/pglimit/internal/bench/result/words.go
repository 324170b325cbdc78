package result

import (
	"fmt"
	"strings"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/format"
)

// Words describe the load in full.
func (s Scenario) Words() string {
	var parts, stages []string
	p := s.Parameters
	say := func(when bool, f string, args ...any) {
		if when {
			parts = append(parts, fmt.Sprintf(f, args...))
		}
	}
	say(p.Loop == "closed", "closed loop of %s", format.Plural(int64(p.Callers), "caller"))
	if p.Loop == "open" {
		rates := []string{format.Number(p.RPS) + "/s"}
		for i, phase := range p.Phases {
			if i == 0 {
				rates = nil
			}
			rates = append(rates, format.Number(phase.Rate)+"/s for "+format.Seconds(phase.Seconds))
		}
		say(true, "open loop, %s arrivals: %s; at most %s at once", p.Arrivals, strings.Join(rates, ", "), format.Count(int64(p.Callers)))
	}
	say(true, "%s of %s", format.Plural(int64(p.Instances), "instance"), format.Plural(int64(p.Conns), "connection"))
	keys := format.Plural(int64(p.Keys), "key") + " of " + p.Limit
	if p.Exponent > 0 {
		keys += fmt.Sprintf(" (%s %v)", p.Distribution, p.Exponent)
	}
	say(true, "%s", keys)
	say(s.AtMost > 0, "at most %s", format.Plural(s.AtMost, "grant"))
	say(p.WithRows, "each with a row")
	for _, c := range p.Costs {
		say(true, "%s cost %d", format.Percent(c.Share), c.Tokens)
	}
	say(p.Cost > 1 && len(p.Costs) == 0, "cost %d", p.Cost)
	say(true, "%s", p.Durability)
	say(p.TimeoutSeconds > 0, "timeout %s", format.Seconds(p.TimeoutSeconds))
	for _, stage := range []struct {
		on   bool
		name string
	}{{p.Combining, "combining"}, {p.Memory, "memory of denials"}, {p.Leases, "leases"}} {
		if stage.on {
			stages = append(stages, stage.name)
		}
	}
	say(len(stages) > 0, "%s", strings.Join(stages, " and "))
	say(len(stages) == 0, "one round trip per decision")
	say(p.AddedLatencySeconds > 0, "%s added to each round trip", format.Seconds(p.AddedLatencySeconds))
	say(true, "%s after %s of warm-up, seed %d", format.Seconds(p.DurationSeconds), format.Seconds(p.WarmupSeconds), p.Seed)
	return strings.Join(parts, "; ")
}
