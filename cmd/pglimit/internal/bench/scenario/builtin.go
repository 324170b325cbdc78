package scenario

import (
	"fmt"
	"strings"
	"time"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
	"github.com/pglimit/ratelimit/pglimit"
)

// Names of scenarios that stand for several, or are not part of the suite.
const (
	Suite   = "suite"    // all of the default run
	WriteUp = "write-up" // the experiment of the write-up
)

// outOfReach is a limit that no load reaches: all is granted.
var outOfReach = pglimit.PerSecond(1_000_000)

// loads with one round trip per decision. Runs are short and are repeated: the median of three short ones is surer than
// one long one on a machine that others use too. Connections are few, because each run opens its own.
func loads() []Scenario {
	load := func(name, title, about, by string, keys int, limit pglimit.Limit) Scenario {
		s := Custom()
		s.Name, s.Title, s.About, s.CompareBy, s.Keys, s.Limit, s.Stages = name, title, about, by, keys, limit, bare
		s.Conns, s.Warmup, s.Phases = 8, 100*time.Millisecond, []Phase{{Length: 300 * time.Millisecond}}
		return s
	}
	partners := load("partners", "partners, denied",
		"The write-up's endpoint: 100 partners, one request per 2 s each, two instances, and callers that do not wait.",
		result.ByDenials, 100, pglimit.Every(2*time.Second))
	partners.Instances, partners.Conns = 2, 4
	partners.Warmup = 0 // the first requests are granted, and then hardly any
	return []Scenario{
		load("many-keys-granted", "many keys, granted",
			"Many users, far below their limit. Every decision writes.",
			result.ByGrants, 1000, outOfReach),
		load("hot-key-granted", "hot key, granted",
			"Everybody takes from one bucket, such as a global limit. Every decision writes the same row.",
			result.ByGrants, 1, outOfReach),
		load("hot-key-denied", "hot key, denied",
			"One client floods its bucket: what a limiter is there for.",
			result.ByDenials, 1, pglimit.PerSecond(100).WithBurst(10)),
		partners,
		load("many-keys-denied", "many keys, denied",
			"Many users, most of them over their limit.",
			result.ByDenials, 100, pglimit.PerSecond(5).WithBurst(1)),
	}
}

// suite is the default run: four loads, and three of them with the default stages. Partners are denied as many keys
// are.
func suite() []Scenario {
	all := loads()[:4]
	return append(all, staged(all[0]), staged(all[1]), staged(all[2]))
}

// staged is the same load with the stages that are on by default.
func staged(s Scenario) Scenario {
	s.StagesOf, s.Name, s.Title = s.Name, s.Name+"-staged", s.Title+", default stages"
	s.About = "The same with combining and the memory of denials, as a Limiter has them by default."
	s.Stages, s.Rounds = Stages{}, 1
	return s
}

// writeUp is the experiment of the write-up (docs/strategies.md, Origin).
func writeUp() Scenario {
	s := Custom()
	s.Name, s.Title = WriteUp, "the write-up's experiment"
	s.About = "One user, one request per 2 s, two instances, each with its own load: 5 requests/s for 3 min, " +
		"50/s for 3 min, 100/s for 4 min. At most 300 may be granted in the 600 s. --duration 1m makes it one minute."
	s.CompareBy, s.AtMost = result.ByGrants, 300
	s.Limit, s.Keys = pglimit.Every(2*time.Second), 1
	s.Instances, s.Conns, s.Callers = 2, 10, 200
	s.Warmup, s.Stages = 0, bare
	s.Phases = []Phase{{2 * 5, 3 * time.Minute}, {2 * 50, 3 * time.Minute}, {2 * 100, 4 * time.Minute}}
	return s
}

// BuiltIn returns all scenarios that have a name, in the order in which they run.
func BuiltIn() []Scenario { return append(suite(), loads()[4], writeUp()) }

// ByName returns the scenarios of that name: several for [Suite].
func ByName(name string) ([]Scenario, error) {
	if name == Suite {
		return suite(), nil
	}
	names := []string{Suite}
	for _, s := range BuiltIn() {
		if s.Name == name {
			return []Scenario{s}, nil
		}
		names = append(names, s.Name)
	}
	return nil, fmt.Errorf("there is no %q, only %s", name, strings.Join(names, ", "))
}
