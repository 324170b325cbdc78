package report

import (
	"cmp"
	"html/template"
	"slices"
	"strings"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/chart"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// capacity is what "pglimit bench capacity" has found.
type capacity struct {
	Bound   string
	Rows    []capacityRow
	Figures []template.HTML
}

type capacityRow struct{ Strategy, Rate, Verdict string }

// newCapacity is nil if there is none.
func newCapacity(all []result.Capacity) (*capacity, error) {
	if len(all) == 0 {
		return nil, nil //nolint:nilnil // no section is not an error
	}
	c := &capacity{Bound: chart.Micros.Text(all[0].P99Bound)}
	for _, one := range all {
		row := capacityRow{Strategy: one.Strategy, Rate: "at none"}
		if one.Rate > 0 {
			row.Rate = rate(one.Rate)
		}
		row.Verdict = verdicts(one)
		c.Rows = append(c.Rows, row)
	}
	for _, picture := range []chart.Picture{sweepRate(all), sweepP99(all), probes(all)} {
		if picture.Empty() {
			continue
		}
		html, err := picture.HTML()
		if err != nil {
			return nil, err
		}
		c.Figures = append(c.Figures, html)
	}
	return c, nil
}

func sweepRate(all []result.Capacity) chart.Lines {
	return chart.Lines{
		ID: "c-1", Title: "Decisions per second by callers (closed loop)",
		Caption: "Where a line stops rising the server is busy, and more callers only wait longer. Bad is a line that falls.",
		X:       byCallers, Y: chart.Axis{Label: "decisions per second"},
		Series: capacitySeries(all, sweep, func(p result.CapacityPoint) chart.Point {
			return chart.Point{X: float64(p.Callers), Y: p.DecisionsPerSecond}
		}),
	}
}

func sweepP99(all []result.Capacity) chart.Lines {
	return chart.Lines{
		ID: "c-2", Title: "p99 by callers",
		Caption: "What the callers pay for it: 99 of 100 requests took no longer. It rises with the queue in front of the server.",
		X:       byCallers, Y: chart.Axis{Label: "p99 of a request", Unit: chart.Micros, Scale: chart.Log},
		Series: capacitySeries(all, sweep, func(p result.CapacityPoint) chart.Point {
			return chart.Point{X: float64(p.Callers), Y: p.P99}
		}),
	}
}

func probes(all []result.Capacity) chart.Lines {
	l := chart.Lines{
		ID: "c-3", Title: "p99 by arrival rate (open loop)",
		Caption: "Requests arrive at this rate whether or not earlier ones have been answered. The highest rate left of the bend and under the thick line is what a strategy can do.",
		X:       chart.Axis{Label: "arrivals per second"},
		Y:       chart.Axis{Label: "p99 of a request", Unit: chart.Micros, Scale: chart.Log},
		Series: capacitySeries(all, func(c result.Capacity) []result.CapacityPoint { return c.Probes }, func(p result.CapacityPoint) chart.Point {
			return chart.Point{X: p.Rate, Y: p.P99}
		}),
	}
	if bound := all[0].P99Bound; bound > 0 {
		l.Limits = []chart.Limit{{Y: bound, Label: "the bound: " + chart.Micros.Text(bound)}}
	}
	return l
}

var byCallers = chart.Axis{Label: "callers (log scale)", Scale: chart.Log}

func sweep(c result.Capacity) []result.CapacityPoint { return c.Sweep }

// capacitySeries has a line per strategy, from left to right.
func capacitySeries(all []result.Capacity, points func(result.Capacity) []result.CapacityPoint, at func(result.CapacityPoint) chart.Point) []chart.Series {
	var names []string
	for _, c := range all {
		names = append(names, c.Strategy)
	}
	style := styles(names)
	var series []chart.Series
	for _, c := range all {
		s := chart.Series{Name: c.Strategy, Style: style[c.Strategy]}
		for _, p := range points(c) {
			s.Points = append(s.Points, at(p))
		}
		slices.SortStableFunc(s.Points, func(a, b chart.Point) int { return cmp.Compare(a.X, b.X) })
		series = append(series, s)
	}
	return series
}

// verdicts of all short runs of a strategy, each once.
func verdicts(c result.Capacity) string {
	var seen []string
	for _, p := range slices.Concat(c.Sweep, c.Probes) {
		if p.Verdict != "" && !slices.Contains(seen, p.Verdict) {
			seen = append(seen, p.Verdict)
		}
	}
	return strings.Join(seen, "; ")
}
