package report

import (
	"math"
	"slices"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/chart"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// total is one figure of a whole run, with a bar per strategy: the median of its runs.
type total struct {
	title, caption, label string
	unit                  chart.Unit
	of                    func(result.Run) float64

	// open and closed are said below the picture if the loop is of that kind.
	open, closed string

	// last is the figure in the last interval that has one, if that is shown too.
	last func(interval) float64

	// dull is the number that is no news if all bars have it. 0 is always dull.
	dull float64
}

// The figures of whole runs.
var (
	meanInAll = total{
		title: "Mean time of a request, in all", caption: "Over the whole run, and in its last interval. Bad if it is longer at the end: the run had not settled.",
		label: "mean of a request", unit: chart.Micros,
		of:   func(r result.Run) float64 { return r.Latency.Known(r.Latency.Mean) },
		last: requestMean.of,
	}
	grantedInAll = total{
		title: "Requests granted, in all", caption: "Of the whole run.",
		open: " All strategies should grant the same.", closed: " Callers that wait less ask more often, and are granted more.",
		label: "requests granted", unit: chart.Number,
		of: func(r result.Run) float64 { return float64(r.Allowed) },
	}
	deniedInAll = total{
		title: "Requests denied, in all", caption: "Of the whole run.",
		open: " Where a bar is shorter than the others, some requests got no answer.", closed: " Callers that are refused sooner ask more often, and are denied more.",
		label: "requests denied", unit: chart.Number,
		of: func(r result.Run) float64 { return float64(r.Denied) },
	}
	answeredInAll = total{
		title: "Requests answered, in all", caption: "Granted or denied, and not failed.",
		open: " All strategies should answer the same number.", closed: " More is better.",
		label: "requests answered", unit: chart.Number,
		of: func(r result.Run) float64 { return float64(r.Decisions) },
	}
	grantedPercent = total{
		title: "Requests granted, percent in all", caption: "Of all requests, those that failed included.",
		label: "percent of the requests", unit: chart.Percent,
		of:   func(r result.Run) float64 { return ofRequests(r.Allowed, r) },
		dull: 100,
	}
	deniedPercent = total{
		title: "Requests denied, percent in all", caption: "Of all requests, those that failed included.",
		label: "percent of the requests", unit: chart.Percent,
		of: func(r result.Run) float64 { return ofRequests(r.Denied, r) },
	}
	failedPercent = total{
		title: "Requests failed, percent in all", caption: "They got no answer. There should be none.",
		label: "percent of the requests", unit: chart.Percent,
		of: func(r result.Run) float64 { return ofRequests(r.Failed(), r) },
	}
)

// ofRequests is a share in percent. NaN: there were no requests.
func ofRequests(n int64, r result.Run) float64 {
	return 100 * float64(n) / float64(r.Decisions+r.Failed())
}

func (t total) draw(a *album, id, number string) chart.Picture {
	b := chart.Bars{ID: id, Title: titled(number, t.title), Caption: t.caption + a.either(t.open, t.closed), Label: t.label, Unit: t.unit}
	if t.last != nil {
		b.NoteLabel = "end"
	}
	ranges := false
	for _, line := range a.lines {
		figure := line.row.Figure(t.of)
		bar := chart.Bar{Name: line.strategy, Style: line.style, Value: figure.Median, Note: math.NaN()}
		if figure.Runs > 1 {
			bar.Low, bar.High = figure.Low, figure.High
			ranges = true
		}
		if t.last != nil {
			bar.Note = lastOf(line.intervals, t.last)
		}
		b.Bars = append(b.Bars, bar)
	}
	if ranges {
		b.Caption += " Bars are medians; the thin line goes from the lowest run to the highest."
	}
	if number == "" && !slices.ContainsFunc(b.Bars, func(bar chart.Bar) bool { return bar.Value != t.dull }) {
		return nil
	}
	return b
}

// lastOf is the figure of the last interval in which there was something.
func lastOf(intervals []interval, of func(interval) float64) float64 {
	for i := len(intervals) - 1; i >= 0; i-- {
		if v := of(intervals[i]); v > 0 {
			return v
		}
	}
	return math.NaN()
}
