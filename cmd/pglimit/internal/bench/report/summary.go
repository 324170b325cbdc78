package report

import (
	"slices"
	"strings"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/chart"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// summary is the table of a scenario: a row per strategy.
type summary struct {
	Heads    []head
	Rows     []summaryRow
	Repeated bool
}

type head struct{ Name, About string }

type summaryRow struct {
	Strategy, Limit, Verdict string
	Bad                      bool
	Cells                    []cell
}

// cell is a median, and from where to where the runs lie if there are several.
type cell struct{ Text, Range string }

// columns of the table. of is NaN where the figure is not known.
var columns = []struct {
	name, about string
	unit        chart.Unit
	of          func(result.Run) float64
}{
	{"grants/s", "requests granted per second", chart.Number, func(r result.Run) float64 { return r.GrantsPerSecond }},
	{"denials/s", "requests denied per second", chart.Number, func(r result.Run) float64 { return r.DenialsPerSecond }},
	{"grant p50", "half of the grants were no slower", chart.Micros, func(r result.Run) float64 { return r.GrantLatency.Known(r.GrantLatency.P50) }},
	{"grant p99", "99 of 100 grants were no slower", chart.Micros, func(r result.Run) float64 { return r.GrantLatency.Known(r.GrantLatency.P99) }},
	{"denial p50", "half of the denials were no slower", chart.Micros, func(r result.Run) float64 { return r.DenialLatency.Known(r.DenialLatency.P50) }},
	{"denial p99", "99 of 100 denials were no slower", chart.Micros, func(r result.Run) float64 { return r.DenialLatency.Known(r.DenialLatency.P99) }},
	{"trips", "round trips on the wire per decision", chart.Number, result.Run.TripsPerDecision},
	{"WAL", "bytes of write-ahead log per decision", chart.Bytes, func(r result.Run) float64 { return result.Known(r.WALBytesPerDecision) }},
	{"contended", "decisions that were denied because another request held the row", chart.Percent, func(r result.Run) float64 { return 100 * r.ContendedShare() }},
	{"errors", "requests that failed", chart.Number, func(r result.Run) float64 { return float64(r.Failed()) }},
	{"deadlocks", "deadlocks that the database counted", chart.Number, func(r result.Run) float64 { return result.Known(r.Deadlocks) }},
}

func newSummary(g result.Group) summary {
	var s summary
	for _, column := range columns {
		s.Heads = append(s.Heads, head{column.name, column.about})
	}
	for _, row := range g.Rows {
		shown := summaryRow{Strategy: row.Strategy, Verdict: row.Verdict(), Bad: slices.ContainsFunc(row.Runs, faulty)}
		if row.Runs[0].Adapted {
			shown.Limit = row.Runs[0].Limit
		}
		for _, column := range columns {
			figure := row.Figure(column.of)
			c := cell{Text: "–"}
			if figure.Runs > 0 {
				c.Text = column.unit.Text(figure.Median)
			}
			if figure.Low != figure.High && figure.Runs > 1 {
				if low, high := column.unit.Text(figure.Low), column.unit.Text(figure.High); low != high {
					c.Range = low + "–" + high
					s.Repeated = true
				}
			}
			shown.Cells = append(shown.Cells, c)
		}
		s.Rows = append(s.Rows, shown)
	}
	return s
}

func faulty(r result.Run) bool { return r.Over() || r.Audit != nil && r.Audit.DenialsNotDue > 0 }

// failure is a kind of error that requests of a strategy ended in.
type failure struct {
	Strategy, Kind, First string
	count                 int64
}

// Count of the requests that ended so.
func (f failure) Count() string { return count(f.count) }

// failures of all runs, by strategy and kind.
func failures(g result.Group) []failure {
	var all []failure
	for _, row := range g.Rows {
		first := len(all)
		for _, run := range row.Runs {
			for kind, n := range run.Errors {
				i := slices.IndexFunc(all[first:], func(f failure) bool { return f.Kind == kind })
				switch {
				case n == 0:
				case i < 0:
					all = append(all, failure{row.Strategy, kind, run.FirstErrors[kind], n})
				default:
					all[first+i].count += n
				}
			}
		}
		slices.SortFunc(all[first:], func(a, b failure) int { return strings.Compare(a.Kind, b.Kind) })
	}
	return all
}
