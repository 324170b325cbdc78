package answer

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/format"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/scenario"
)

// What strategies are compared by in a load.
const (
	Grants    = "grants/s"
	Denials   = "denials/s"
	Decisions = "decisions/s"
	Latency   = "p99"        // of an open loop, whose rate is given. Microseconds, the least is best
	Arrivals  = "arrivals/s" // that were kept, of a search for the highest rate
	Granted   = "tokens"     // of the write-up's experiment: granted, which may be at most Scenario.AtMost
)

// Load is a row of the answer.
type Load struct {
	Scenario result.Scenario
	Unit     string // of the figures: Grants, …
	Cells    []Cell // one for each of Answer.Strategies
}

// Cell is one strategy under one load, all rounds.
type Cell struct {
	Strategy string
	Ran      bool // if not, nothing else is set
	Figure   result.Figure
	P99      result.Figure // of grants, denials or decisions, as the figure. Microseconds

	Best   bool // the best median of those that may be recommended
	Close  bool // too close to the best to call
	Faulty bool // it decided wrongly, or failed often

	// Contended: more than 5 % of the requests were denied only because another caller held the row. That is no feat, so
	// such a strategy is not the best of the load if there is another.
	Contended bool

	faults []string
}

// Staged says that the load is that of another row, with the default stages of a Limiter.
func (l Load) Staged() bool { return l.Scenario.StagesOf != "" }

// Cell of that strategy.
func (l Load) Cell(strategy string) Cell {
	i := slices.IndexFunc(l.Cells, func(c Cell) bool { return c.Strategy == strategy })
	if i < 0 {
		return Cell{Strategy: strategy}
	}
	return l.Cells[i]
}

func loadOf(g result.Group, strategies []string) Load {
	l := Load{Scenario: g.Scenario, Unit: unitOf(g.Scenario)}
	least := 1.0 // share of failed requests of any
	for _, row := range g.Rows {
		least = min(least, failed(row))
	}
	for _, name := range strategies {
		row, ran := g.Row(name)
		c := Cell{Strategy: name, Ran: ran}
		if ran {
			c.Figure, c.P99 = row.Figure(l.figure), row.Figure(l.p99)
			c.Contended = row.Figure(result.Run.ContendedShare).Median > 0.05
			c.faults = faultsOf(g.Scenario, row, least)
			c.Faulty = len(c.faults) > 0
		}
		l.Cells = append(l.Cells, c)
	}
	return l
}

func unitOf(s result.Scenario) string {
	switch {
	case s.AtMost > 0:
		return Granted
	case s.Open():
		return Latency
	case s.CompareBy == scenario.ByGrants:
		return Grants
	case s.CompareBy == scenario.ByDenials:
		return Denials
	}
	return Decisions
}

func (l Load) figure(run result.Run) float64 {
	switch l.Unit {
	case Granted:
		return float64(run.Granted)
	case Latency:
		return l.p99(run)
	}
	return result.Main(l.Scenario)(run)
}

func (l Load) p99(run result.Run) float64 {
	latency := run.Latency
	if l.Scenario.AtMost == 0 && l.Scenario.CompareBy == scenario.ByGrants {
		latency = run.GrantLatency
	} else if l.Scenario.CompareBy == scenario.ByDenials {
		latency = run.DenialLatency
	}
	return latency.Known(latency.P99)
}

// capacityLoad is the load of a search for the highest rate.
func capacityLoad(found []result.Capacity) Load {
	l := Load{Scenario: result.Scenario{Title: "kept, p99 under " + format.Micros(found[0].P99Bound)}, Unit: Arrivals}
	for _, f := range found {
		c := Cell{Strategy: f.Strategy, Ran: true, Figure: result.Figure{Median: f.Rate, Low: f.Rate, High: f.Rate, Runs: 1}}
		for _, p := range f.Probes {
			if p.Kept && p.Rate == f.Rate {
				c.P99 = result.Figure{Median: p.P99, Low: p.P99, High: p.P99, Runs: 1}
			}
		}
		if over := f.OverTokens(); over > 0 {
			c.faults = append(c.faults, "over by "+format.Plural(over, "token"))
		}
		if f.Rate == 0 {
			c.faults = append(c.faults, "at no rate")
		}
		c.Faulty = len(c.faults) > 0
		l.Cells = append(l.Cells, c)
	}
	return l
}

// Best is the cell that is the best of the load. None is: the zero value.
func (l Load) Best() Cell {
	for _, c := range l.Cells {
		if c.Best {
			return c
		}
	}
	return Cell{}
}

// mark the best of the eligible strategies, and those that are too close to it.
func (l Load) mark(eligible []string) {
	may := func(c *Cell) bool { return c.Ran && slices.Contains(eligible, c.Strategy) }
	var best *Cell
	for i := range l.Cells {
		c := &l.Cells[i]
		if may(c) && c.Figure.Runs > 0 && (best == nil || l.better(*c, *best)) {
			best = c
		}
	}
	if best == nil {
		return
	}
	best.Best = true
	for i := range l.Cells {
		c := &l.Cells[i]
		c.Close = c != best && may(c) && c.Contended == best.Contended && TooClose(c.Figure, best.Figure)
	}
}

func (l Load) better(a, b Cell) bool {
	if a.Contended != b.Contended {
		return b.Contended
	}
	return l.ratio(a, b) > 1
}

// ratio says how many times as good a is as b under this load: 2 is twice the grants per second, or half the latency.
// NaN: one of them has no figure.
func (l Load) ratio(a, b Cell) float64 {
	if a.Figure.Runs == 0 || b.Figure.Runs == 0 {
		return math.NaN()
	}
	if l.Unit == Latency {
		a, b = b, a
	}
	if a.Figure.Median == 0 && b.Figure.Median == 0 {
		return 1
	}
	return a.Figure.Median / b.Figure.Median
}

// failed is the share of the row's requests that ended in an error.
func failed(row result.Row) float64 {
	var failed, all int64
	for _, run := range row.Runs {
		failed += run.Failed()
		all += run.Failed() + run.Decisions
	}
	return float64(failed) / float64(max(1, all))
}

// faultsOf a strategy, in words. Failures are a fault if they are most requests, or more than one in a thousand and
// three times as many as those of the strategy with the least: a restart of the server is nobody's fault.
func faultsOf(s result.Scenario, row result.Row, least float64) (list []string) {
	var over, undue, tooMany int64
	for _, run := range row.Runs {
		if run.Audit != nil {
			over = max(over, run.Audit.OverTokens)
			undue += run.Audit.DenialsNotDue
		}
		if s.AtMost > 0 {
			tooMany = max(tooMany, run.Granted-s.AtMost)
		}
	}
	say := func(is bool, format string, figure any) {
		if is {
			list = append(list, fmt.Sprintf(format, figure))
		}
	}
	say(over > 0, "over by %s", format.Plural(over, "token"))
	say(tooMany > 0 && over == 0, "granted %s too many", format.Plural(tooMany, "token"))
	say(undue > 0, "%s undue", format.Plural(undue, "denial"))
	share := failed(row)
	say(share > 0.5 || share > 0.001 && share > 3*least, "%s failed", format.Percent(share))
	return list
}

// nameFaults names the first fault of each strategy, and in how many other loads it had some.
func (a *Answer) nameFaults() {
	for _, name := range a.Strategies {
		first, others := "", 0
		for _, l := range a.Loads {
			switch c := l.Cell(name); {
			case c.Faulty && first == "":
				first = name + ", " + l.Scenario.Title + ": " + strings.Join(c.faults, ", ")
			case c.Faulty:
				others++
			}
		}
		if others > 0 {
			first += "; and " + format.Plural(int64(others), "other load")
		}
		if first != "" {
			a.Faults = append(a.Faults, first)
		}
	}
}
