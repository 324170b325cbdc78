package rank

import (
	"slices"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// Split returns the scenarios that stand for themselves, and those that have the load of
// another one that was run, with stages.
func Split(groups []result.Group) (base, staged []result.Group) {
	for _, g := range groups {
		if _, found := Base(groups, g); found {
			staged = append(staged, g)
		} else {
			base = append(base, g)
		}
	}
	return base, staged
}

// Base is the scenario with the same load without stages.
func Base(groups []result.Group, staged result.Group) (result.Group, bool) {
	i := slices.IndexFunc(groups, func(g result.Group) bool { return g.Scenario.Name == staged.Scenario.StagesOf })
	if i < 0 || staged.Scenario.StagesOf == "" {
		return result.Group{}, false
	}
	return groups[i], true
}
