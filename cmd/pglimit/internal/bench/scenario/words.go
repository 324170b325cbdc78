package scenario

import (
	"fmt"
	"strings"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/format"
)

// Words describe the load in full.
func (s Scenario) Words() string {
	var parts, stages []string
	say := func(when bool, f string, args ...any) {
		if when {
			parts = append(parts, fmt.Sprintf(f, args...))
		}
	}
	say(!s.Open(), "closed loop of %s", format.Plural(int64(s.Callers), "caller"))
	if s.Open() {
		var rates []string
		for _, p := range s.Phases {
			rates = append(rates, fmt.Sprintf("%s/s for %s", format.Number(p.Rate), format.Seconds(p.Length.Seconds())))
		}
		say(true, "open loop, %s arrivals: %s; at most %s at once", s.Arrivals, strings.Join(rates, ", "), format.Count(int64(s.Callers)))
	}
	say(true, "%s of %s", format.Plural(int64(s.Instances), "instance"), format.Plural(int64(s.Conns), "connection"))
	keys := format.Plural(int64(s.Keys), "key") + " of " + s.Limit.String()
	if s.Distribution == Zipf {
		keys += fmt.Sprintf(" (%s %v)", s.Distribution, s.Exponent)
	}
	say(true, "%s", keys)
	say(s.AtMost > 0, "at most %s", format.Plural(s.AtMost, "grant"))
	say(s.WithRows, "each with a row")
	for _, c := range s.Costs {
		say(len(s.Costs) > 1, "cost %d with a share of %v", c.Tokens, c.Share)
		say(len(s.Costs) == 1 && c.Tokens > 1, "cost %d", c.Tokens)
	}
	say(true, "%s", s.Durability)
	say(s.Timeout > 0, "timeout %s", format.Seconds(s.Timeout.Seconds()))
	for _, stage := range []struct {
		on   bool
		name string
	}{{!s.Stages.NoCombining, "combining"}, {!s.Stages.NoMemory, "memory of denials"}, {s.Stages.Leases, "leases"}} {
		if stage.on {
			stages = append(stages, stage.name)
		}
	}
	say(len(stages) > 0, "%s", strings.Join(stages, " and "))
	say(len(stages) == 0, "one round trip per decision")
	say(s.Latency > 0, "%s added to each round trip", format.Seconds(s.Latency.Seconds()))
	say(true, "%s after %s of warm-up", format.Seconds(s.Length().Seconds()), format.Seconds(s.Warmup.Seconds()))
	return strings.Join(parts, "; ")
}
