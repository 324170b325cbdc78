package answer

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/format"
)

// Default is the strategy to take where the figures do not decide: it takes any limit, in one round trip.
const Default = "token_bucket"

// tooFarApart is the spread of a cell's rounds, as a share of their median, above which the cell says nothing.
const tooFarApart = 0.5

func (a *Answer) choose() {
	a.nameFaults()
	if a.noise(); a.Noisy {
		return
	}
	ranked := a.ranked()
	if len(ranked) == 0 {
		a.Headline = "No strategy can be recommended: all had faults"
		return
	}
	if a.Take = ranked[0]; len(ranked) > 1 {
		a.Next = ranked[1]
		a.say(ranked)
		return
	}
	a.Headline = "Take " + a.Take + ": all others had faults"
	if len(a.Strategies) == 1 {
		a.Headline = "Only " + a.Take + " was run"
	}
	l := a.Loads[0]
	a.Because = fmt.Sprintf("It made %s in %q, with a p99 of %s.", l.words(a.Take), l.Scenario.Title, format.Micros(l.Cell(a.Take).P99.Median))
}

// noise says that rounds lie too far apart in most cells.
func (a *Answer) noise() {
	cells, apart := 0, 0
	for _, l := range a.Loads {
		for _, c := range l.Cells {
			if c.Figure.Runs > 1 {
				cells++
				if c.Figure.Spread() > tooFarApart {
					apart++
				}
			}
		}
	}
	if a.Noisy = 2*apart > cells; a.Noisy {
		a.Headline = "No answer: the rounds lie too far apart"
		a.Because = fmt.Sprintf("In %d of %d cells they differ by more than half: something else uses this machine, so the "+
			"figures do not say which strategy is faster. Run it again when the machine is quiet, or with --repeat 10.", apart, cells)
	}
}

// eligible are the strategies that may be recommended.
func (a *Answer) eligible() (names []string) {
	ours := slices.ContainsFunc(a.Strategies, func(name string) bool { return !published(name) })
	for _, name := range a.Strategies {
		faulty := slices.ContainsFunc(a.Loads, func(l Load) bool { return l.Cell(name).Faulty })
		if !faulty && (!ours || !published(name)) {
			names = append(names, name)
		}
	}
	return names
}

// ranked are the eligible strategies, the one to take first.
func (a *Answer) ranked() []string {
	names := a.eligible()
	rank := func(name string) int {
		if name == Default { // it goes first among equals
			return 2*a.ahead(name) + 1
		}
		return 2 * a.ahead(name)
	}
	slices.SortStableFunc(names, func(x, y string) int { return cmp.Compare(rank(y), rank(x)) })
	return names
}

// ahead is in how many loads the strategy is the best or too close to it.
func (a *Answer) ahead(strategy string) (n int) {
	for _, l := range a.Loads {
		if c := l.Cell(strategy); c.Best || c.Close {
			n++
		}
	}
	return n
}

// say which of two or more to take, and the figures that decide.
func (a *Answer) say(ranked []string) {
	var most, behind Load
	lead, least := 1.0, 1.0
	for _, l := range a.Loads {
		take, next, best := l.Cell(a.Take), l.Cell(a.Next), l.Best()
		if ratio := l.ratio(take, next); ratio > lead && !TooClose(take.Figure, next.Figure) {
			most, lead = l, ratio
		}
		if ratio := l.ratio(take, best); !take.Best && !take.Close && ratio < least {
			behind, least = l, ratio
		}
	}
	if lead == 1 && least == 1 {
		a.Headline = "Too close to call between " + strings.Join(a.alike(ranked), ", ")
		a.Because = "Nothing measured here decides: take " + a.Take
		if a.Take == Default {
			a.Because += ", the default, which takes any limit in one round trip"
		}
		a.Because += "."
		return
	}
	a.Headline = "Take " + a.Take
	a.Because = fmt.Sprintf("It is the best or too close to call in %d of %d loads", a.ahead(a.Take), len(a.Loads))
	if lead > 1 {
		beside := "the " + most.Unit + " of "
		if most.Unit == Latency {
			beside = "as fast at p99 as "
		}
		times, figures := format.Times(lead), fmt.Sprintf("%s beside %s", most.words(a.Take), most.words(a.Next))
		if len(a.Loads) == 1 {
			a.Because = "It has " + figures
		} else {
			times = "up to " + times
			a.Because += fmt.Sprintf("; furthest ahead in %q, with %s", most.Scenario.Title, figures)
		}
		a.Headline += fmt.Sprintf(": %s %s%s, the next best", times, beside, a.Next)
	}
	if least < 1 {
		best := behind.Best().Strategy
		a.Because += fmt.Sprintf("; furthest behind in %q, with %s beside %s of %s", behind.Scenario.Title, behind.words(a.Take), behind.words(best), best)
	}
	a.Because += "."
}

// alike are the strategies as good as the one to take.
func (a *Answer) alike(ranked []string) []string {
	return slices.DeleteFunc(slices.Clone(ranked), func(name string) bool {
		return slices.ContainsFunc(a.Loads, func(l Load) bool {
			return name != a.Take && !TooClose(l.Cell(name).Figure, l.Cell(a.Take).Figure)
		})
	})
}

// words are the figure of a strategy with its unit: 19,208 grants/s.
func (l Load) words(strategy string) string {
	figure := l.Cell(strategy).Figure.Median
	if l.Unit == Latency {
		return "a p99 of " + format.Micros(figure)
	}
	return format.Number(figure) + " " + l.Unit
}
