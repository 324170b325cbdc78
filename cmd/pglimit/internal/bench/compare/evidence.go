package compare

import (
	"slices"
	"strings"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// Evidence is a report, arranged for choosing a strategy.
type Evidence struct {
	Base       []Load   // scenarios that stand for themselves
	Staged     []Load   // the load of one of them, with stages
	Names      []string // of all strategies, in the order in which they ran
	Candidates []string // the strategies that may be recommended
	Out        []string // the strategies that a fault rules out
	Excused    bool     // all had faults, and the candidates are those that decided rightly
}

// Load is a scenario with the standing of each strategy, the fastest first.
type Load struct {
	Scenario  result.Scenario
	Standings []Standing
}

// EvidenceOf the report.
func EvidenceOf(r result.Report) *Evidence {
	e := &Evidence{}
	groups := r.Groups()
	base, staged := Split(groups)
	for _, g := range base {
		e.Base = append(e.Base, Load{g.Scenario, Rank(g)})
	}
	for _, g := range staged {
		e.Staged = append(e.Staged, Load{g.Scenario, Rank(g)})
	}
	for _, g := range groups {
		for _, row := range g.Rows {
			if !slices.Contains(e.Names, row.Strategy) {
				e.Names = append(e.Names, row.Strategy)
			}
		}
	}
	for _, name := range e.Names {
		if e.Faults(name).Any() {
			e.Out = append(e.Out, name)
		} else {
			e.Candidates = append(e.Candidates, name)
		}
	}
	if len(e.Candidates) == 0 {
		e.Excused = true
		e.Candidates = e.excusable()
	}
	// The write-up's statements as published are run to be compared with, not to be taken.
	if ours := slices.DeleteFunc(slices.Clone(e.Candidates), Published); len(ours) > 0 {
		e.Candidates = ours
	}
	return e
}

// farMore is how much larger a share of failed requests rules a strategy out if all had failures: one that answers a
// few in time and fails the others would otherwise pass for fast.
const farMore = 0.1

// excusable are the strategies that decided correctly, and did not fail far more often than the best of those.
func (e *Evidence) excusable() (names []string) {
	least := 1.0
	for _, name := range e.Names {
		if f := e.Faults(name); !f.Wrong() {
			names = append(names, name)
			least = min(least, f.FailedShare())
		}
	}
	return slices.DeleteFunc(names, func(name string) bool { return e.Faults(name).FailedShare() > least+farMore })
}

// Published says that the strategy is one of the write-up's statements as published.
func Published(name string) bool { return strings.HasPrefix(name, PublishedPrefix) }

// PublishedPrefix begins the names of the write-up's statements as published.
const PublishedPrefix = "published_"

// All loads, those with stages last.
func (e *Evidence) All() []Load { return slices.Concat(e.Base, e.Staged) }

// StagedGrants are the loads with stages in which nearly all is granted. There Postgres
// decides; where denials come from memory, all strategies are as fast.
func (e *Evidence) StagedGrants() []Load {
	return slices.DeleteFunc(slices.Clone(e.Staged), func(l Load) bool { return l.By() != result.ByGrants })
}

// Without returns the load of the same scenario without stages.
func (e *Evidence) Without(staged Load) Load {
	i := slices.IndexFunc(e.Base, func(l Load) bool { return l.Scenario.Name == staged.Scenario.StagesOf })
	return e.Base[i] // which is there: see Split
}

// Faults of the strategy under all loads.
func (e *Evidence) Faults(name string) (f Faults) {
	for _, l := range e.All() {
		if s, ran := l.Of(name); ran {
			f = f.Plus(s.Faults)
		}
	}
	return f
}

// Patient strategies seldom deny because another caller holds the row. All of the named
// ones, if none is.
func (e *Evidence) Patient(names []string) []string {
	some := slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		return slices.ContainsFunc(e.Base, func(l Load) bool {
			s, ran := l.Of(name)
			return ran && s.OftenContended()
		})
	})
	if len(some) == 0 {
		return names
	}
	return some
}

// Of that strategy.
func (l Load) Of(name string) (Standing, bool) {
	i := slices.IndexFunc(l.Standings, func(s Standing) bool { return s.Strategy == name })
	if i < 0 {
		return Standing{}, false
	}
	return l.Standings[i], true
}

// Among the named strategies, the fastest first.
func (l Load) Among(names []string) (some []Standing) {
	for _, s := range l.Standings {
		if slices.Contains(names, s.Strategy) {
			some = append(some, s)
		}
	}
	return some
}

// By says what strategies are compared by: [result.ByGrants], ByDenials or ByDecisions.
func (l Load) By() string {
	switch l.Scenario.CompareBy {
	case result.ByGrants, result.ByDenials:
		return l.Scenario.CompareBy
	}
	return result.ByDecisions
}

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
