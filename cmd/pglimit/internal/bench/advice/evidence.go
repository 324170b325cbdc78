package advice

import (
	"slices"
	"strings"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/format"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/rank"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// evidence is a report, arranged for those who judge it.
type evidence struct {
	report     result.Report
	base       []load // scenarios that stand for themselves
	staged     []load
	names      []string // of all strategies, in the order in which they ran
	candidates []string // those of them that may be recommended
	out        []string // those that a fault rules out
	excused    bool     // all had faults, and candidates are those that decided rightly
}

// load is a scenario with the standing of each strategy, the fastest first.
type load struct {
	scenario  result.Scenario
	standings []rank.Standing
}

func newEvidence(r result.Report) *evidence {
	e := &evidence{report: r}
	groups := r.Groups()
	base, staged := rank.Split(groups)
	for _, g := range base {
		e.base = append(e.base, load{g.Scenario, rank.Of(g)})
	}
	for _, g := range staged {
		e.staged = append(e.staged, load{g.Scenario, rank.Of(g)})
	}
	for _, g := range groups {
		for _, row := range g.Rows {
			if !slices.Contains(e.names, row.Strategy) {
				e.names = append(e.names, row.Strategy)
			}
		}
	}
	for _, name := range e.names {
		if e.faults(name).Any() {
			e.out = append(e.out, name)
		} else {
			e.candidates = append(e.candidates, name)
		}
	}
	if len(e.candidates) == 0 {
		e.excused = true
		e.candidates = slices.DeleteFunc(slices.Clone(e.names), func(name string) bool { return e.faults(name).Wrong() })
	}
	// The write-up's statements as published are run to be compared with, not to be taken.
	if ours := slices.DeleteFunc(slices.Clone(e.candidates), published); len(ours) > 0 {
		e.candidates = ours
	}
	return e
}

func published(name string) bool { return strings.HasPrefix(name, "published_") }

// all loads, those with stages last.
func (e *evidence) all() []load { return slices.Concat(e.base, e.staged) }

// stagedGrants are the loads with stages in which nearly all is granted, so that Postgres
// decides it.
func (e *evidence) stagedGrants() []load {
	return slices.DeleteFunc(slices.Clone(e.staged), func(l load) bool { return l.by() != result.ByGrants })
}

func (e *evidence) faults(name string) (f rank.Faults) {
	for _, l := range e.all() {
		if s, ran := l.of(name); ran {
			f = f.Plus(s.Faults)
		}
	}
	return f
}

// of that strategy.
func (l load) of(name string) (rank.Standing, bool) {
	i := slices.IndexFunc(l.standings, func(s rank.Standing) bool { return s.Strategy == name })
	if i < 0 {
		return rank.Standing{}, false
	}
	return l.standings[i], true
}

// among the named strategies, the fastest first.
func (l load) among(names []string) (some []rank.Standing) {
	for _, s := range l.standings {
		if slices.Contains(names, s.Strategy) {
			some = append(some, s)
		}
	}
	return some
}

// unit of the load's main figure.
func (l load) unit() string { return l.by() + "/s" }

func (l load) by() string {
	switch l.scenario.CompareBy {
	case result.ByGrants, result.ByDenials:
		return l.scenario.CompareBy
	}
	return result.ByDecisions
}

// ruledOut names the strategies that had faults, and where the worst of them were.
func (e *evidence) ruledOut() string {
	var said []string
	for _, name := range e.out {
		said = append(said, name+" ("+strings.Join(e.faults(name).Words(false), ", ")+e.where(name)+")")
	}
	if len(said) == 0 {
		return ""
	}
	text := "Ruled out by faults: " + strings.Join(said, "; ")
	switch {
	case e.excused && len(e.candidates) > 0:
		text = "Every strategy had faults: " + strings.Join(said, "; ") + ". What follows leaves out only those that decided wrongly"
	case e.excused:
		text = "None can be recommended, all had faults: " + strings.Join(said, "; ")
	}
	return text
}

// where the strategy had its faults, if there are several loads.
func (e *evidence) where(name string) string {
	var titles []string
	for _, l := range e.all() {
		if s, ran := l.of(name); ran && s.Faults.Any() {
			titles = append(titles, l.scenario.Title)
		}
	}
	switch {
	case len(e.all()) == 1:
		return ""
	case len(titles) > 1:
		return "; in " + format.Count(int64(len(titles))) + " loads"
	}
	return "; " + titles[0]
}
