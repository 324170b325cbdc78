package scenario

import (
	"fmt"
	"strings"
	"time"

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
	load := func(name, title, by string, keys int, limit pglimit.Limit) Scenario {
		s := Custom()
		s.Name, s.Title, s.CompareBy, s.Keys, s.Limit, s.Stages = name, title, by, keys, limit, bare
		s.Conns, s.Warmup, s.Phases = 8, 100*time.Millisecond, []Phase{{Length: 300 * time.Millisecond}}
		return s
	}
	partners := load("partners", "partners, denied", ByDenials, 100, pglimit.Every(2*time.Second))
	partners.Instances, partners.Conns = 2, 4
	partners.Warmup = 0 // the first requests are granted, and then hardly any
	return []Scenario{
		load("many-keys-granted", "many keys, granted", ByGrants, 1000, outOfReach),
		load("hot-key-granted", "hot key, granted", ByGrants, 1, outOfReach),
		load("hot-key-denied", "hot key, denied", ByDenials, 1, pglimit.PerSecond(100).WithBurst(10)),
		partners,
		load("many-keys-denied", "many keys, denied", ByDenials, 100, pglimit.PerSecond(5).WithBurst(1)),
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
	s.Stages, s.Once = Stages{}, true
	return s
}

// writeUp is the experiment of the write-up (docs/strategies.md, Origin): one user, two instances, each with a load of
// its own, and at most 300 grants in 600 s.
func writeUp() Scenario {
	s := Custom()
	s.Name, s.Title = WriteUp, "the write-up's experiment"
	s.CompareBy, s.AtMost = ByGrants, 300
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
