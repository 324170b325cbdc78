package answer

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/format"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// Default is the strategy to take where the figures do not decide: it takes any limit, in one round trip.
const Default = "token_bucket"

// tooFarApart is the spread of a cell's rounds, as a share of their median, above which the cell says nothing.
const tooFarApart = 0.5

func (a *Answer) choose() {
	a.nameFaults()
	if a.Noisy = a.noise(); a.Noisy != "" {
		a.Headline = "No answer: the rounds lie too far apart"
		a.Sentences = []string{a.Noisy}
		return
	}
	ranked := a.ranked()
	if len(ranked) == 0 {
		a.Headline = "No strategy can be recommended: all had faults"
		a.Sentences = []string{a.Headline + "."}
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
	a.Sentences = []string{a.Headline + ".", a.only()}
}

// noise says that rounds lie too far apart in most cells.
func (a *Answer) noise() string {
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
	if 2*apart <= cells {
		return ""
	}
	return fmt.Sprintf("In %d of %d cells the rounds differ by more than half: something else uses this machine, so the "+
		"figures do not say which strategy is faster. Run it again when the machine is quiet, or with --repeat 10.", apart, cells)
}

// eligible are the strategies that may be recommended.
func (a *Answer) eligible() (names []string) {
	ours := slices.ContainsFunc(a.Strategies, func(name string) bool { return !Published(name) })
	for _, name := range a.Strategies {
		faulty := slices.ContainsFunc(a.Loads, func(l Load) bool { return l.Cell(name).Faulty })
		if !faulty && (!ours || !Published(name)) {
			names = append(names, name)
		}
	}
	return names
}

// ranked are the eligible strategies, the one to take first.
func (a *Answer) ranked() []string {
	names := a.eligible()
	slices.SortStableFunc(names, func(x, y string) int {
		ahead, other := a.ahead(x), a.ahead(y)
		if ahead == other && (x == Default || y == Default) {
			return cmp.Compare(second(y == Default), second(x == Default)) // the default goes first
		}
		return cmp.Compare(other, ahead)
	})
	return names
}

func second(is bool) int {
	if is {
		return 1
	}
	return 0
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
	most := Load{}
	behind := Load{}
	lead, least := 1.0, 1.0
	for _, l := range a.Loads {
		take, next := l.Cell(a.Take), l.Cell(a.Next)
		if ratio := l.Ratio(a.Take, a.Next); ratio > lead && !TooClose(take.Figure, next.Figure) {
			most, lead = l, ratio
		}
		if best := l.best(ranked); take.Ran && !take.Best && !take.Close && l.Ratio(a.Take, best) < least {
			behind, least = l, l.Ratio(a.Take, best)
		}
	}
	record := fmt.Sprintf("Take %s: it is the best or too close to call in %d of %s", a.Take, a.ahead(a.Take), format.Plural(int64(len(a.Loads)), "load"))
	figures := fmt.Sprintf("%s beside %s of %s, the next", most.Words(a.Take), most.Words(a.Next), a.Next)
	switch {
	case lead == 1 && least == 1:
		a.Close = true
		a.Headline = "Too close to call between " + strings.Join(a.alike(ranked), ", ")
		a.Sentences = []string{a.Headline + ".", "Nothing measured here decides: take " + a.Take + a.why() + "."}
		return
	case lead == 1:
		a.Headline = "Take " + a.Take
		a.Sentences = []string{record + "."}
	case len(a.Loads) == 1:
		a.Headline = "For this load take " + a.Take + a.by(most, lead)
		a.Sentences = []string{fmt.Sprintf("For this load take %s: %s.", a.Take, figures)}
	default:
		a.Headline = "Take " + a.Take + a.by(most, lead)
		a.Sentences = []string{fmt.Sprintf("%s, and furthest ahead in %q: %s.", record, most.Scenario.Title, figures)}
	}
	if least < 1 {
		best := behind.best(ranked)
		a.Sentences = append(a.Sentences, fmt.Sprintf("It is furthest behind in %q: %s beside %s of %s.",
			behind.Scenario.Title, behind.Words(a.Take), behind.Words(best), best))
	} else {
		a.Sentences = append(a.Sentences, "No other is clearly ahead of it in any load.")
	}
}

// alike are the strategies as good as the one to take.
func (a *Answer) alike(ranked []string) []string {
	return slices.DeleteFunc(slices.Clone(ranked), func(name string) bool {
		return slices.ContainsFunc(a.Loads, func(l Load) bool {
			return name != a.Take && !TooClose(l.Cell(name).Figure, l.Cell(a.Take).Figure)
		})
	})
}

func (a *Answer) why() string {
	if a.Take == Default {
		return ", the default, which takes any limit in one round trip"
	}
	return ""
}

// only says the figures of the only strategy.
func (a *Answer) only() string {
	l := a.Loads[0]
	text := fmt.Sprintf("It made %s in %q", l.Words(a.Take), l.Scenario.Title)
	if l.Unit != Latency {
		text += fmt.Sprintf(", with a p99 of %s", format.Micros(l.Cell(a.Take).P99.Median))
	}
	return text + "."
}

// best of the named strategies under the load.
func (l Load) best(names []string) (best string) {
	for _, name := range names {
		if c := l.Cell(name); c.Figure.Runs > 0 && (best == "" || l.better(c, l.Cell(best))) {
			best = name
		}
	}
	return best
}

// Words are the figure of a strategy with its unit: 19,208 grants/s.
func (l Load) Words(strategy string) string {
	figure := l.Cell(strategy).Figure.Median
	if l.Unit == Latency {
		return "a p99 of " + format.Micros(figure)
	}
	return format.Number(figure) + " " + l.Unit
}

// by how much the strategy to take is ahead of the next under the load.
func (a *Answer) by(l Load, ratio float64) string {
	if l.Unit == Latency {
		return fmt.Sprintf(": %s the p99 of %s, the next best", format.Times(1/ratio), a.Next)
	}
	upTo := ""
	if len(a.Loads) > 1 {
		upTo = "up to "
	}
	return fmt.Sprintf(": %s%s the %s of %s, the next best", upTo, format.Times(ratio), l.Unit, a.Next)
}

func (a *Answer) ofCapacity(found []result.Capacity) {
	exact := slices.DeleteFunc(slices.Clone(found), func(c result.Capacity) bool {
		over := func(p result.CapacityPoint) bool { return p.OverTokens > 0 }
		return slices.ContainsFunc(c.Sweep, over) || slices.ContainsFunc(c.Probes, over)
	})
	if len(exact) == 0 {
		a.Headline = "No strategy can be recommended: all had faults"
		return
	}
	best := slices.MaxFunc(exact, func(x, y result.Capacity) int { return cmp.Compare(x.Rate, y.Rate) })
	if best.Rate == 0 || math.IsNaN(best.Rate) {
		a.Headline = "No strategy kept p99 under " + format.Micros(best.P99Bound)
		return
	}
	a.Take = best.Strategy // and nothing else is to be said
	a.Headline = fmt.Sprintf("%s keeps p99 under %s up to the highest rate, %s/s", best.Strategy, format.Micros(best.P99Bound), format.Number(best.Rate))
}
