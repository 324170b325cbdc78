package report

import (
	"math"
	"slices"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/chart"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// curve is latency at rising percentiles, with a line per strategy.
type curve struct {
	title, caption, label string
	of                    func(result.Run) result.Latency
}

// The percentile curves.
var (
	grantCurve = curve{
		"Grants: latency by percentile", "Each step to the right is ten times as rare. Bad is a curve that bends upwards at the right: rare grants that are very slow.",
		"latency of a grant", func(r result.Run) result.Latency { return r.GrantLatency },
	}
	denialCurve = curve{
		"Denials: latency by percentile", "Each step to the right is ten times as rare. A low curve with a step upwards has some denials answered from memory and the others by the server.",
		"latency of a denial", func(r result.Run) result.Latency { return r.DenialLatency },
	}
)

func (c curve) draw(a *album, id, number string) chart.Picture {
	l := chart.Lines{
		ID: id, Title: titled(number, c.title), Caption: c.caption,
		X: chart.Axis{Label: "percent that were no slower", Unit: chart.Percent, Scale: chart.Percentile},
		Y: chart.Axis{Label: c.label, Unit: chart.Micros, Scale: chart.Log},
	}
	for _, line := range a.lines {
		series := chart.Series{Name: line.strategy, Style: line.style}
		for _, p := range sparse(c.of(line.run).Curve) {
			series.Points = append(series.Points, chart.Point{X: p.Percent, Y: p.US})
		}
		l.Series = append(l.Series, series)
	}
	return l
}

// sparse leaves out points that lie on top of the point before, on the scale of the curve,
// unless people know their percentile.
func sparse(curve []result.CurvePoint) []result.CurvePoint {
	const apart = 0.1 // of a step that is ten times as rare
	rarity := func(p result.CurvePoint) float64 { return -math.Log10(1 - min(p.Percent, 99.9999)/100) }
	var kept []result.CurvePoint
	for _, p := range curve {
		known := slices.Contains([]float64{50, 90, 99, 99.9, 99.99}, p.Percent)
		if len(kept) == 0 || known || rarity(p)-rarity(kept[len(kept)-1]) >= apart {
			kept = append(kept, p)
		}
	}
	return kept
}
