package report

import (
	"math"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/chart"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// timeline is a figure over time, with a line per strategy. of returns NaN where there is
// none.
type timeline struct {
	title, caption string
	label          string
	unit           chart.Unit
	scale          chart.Scale
	of             func(interval) float64
}

// The figures over time.
var (
	grantedOverTime = timeline{
		"Requests granted over time", "Level is good. A dip that the others do not have is a strategy that stalls.",
		"granted per second", chart.Number, chart.Linear,
		func(i interval) float64 { return perSecond(i.Granted, i) },
	}
	deniedOverTime = timeline{
		"Requests denied over time", "More denials per second only mean that callers asked faster. Look for dips.",
		"denied per second", chart.Number, chart.Linear,
		func(i interval) float64 { return perSecond(i.Denied, i) },
	}
	failedOverTime = timeline{
		"Requests failed over time", "There should be none: a request that failed got no answer.",
		"failed per second", chart.Number, chart.Linear,
		func(i interval) float64 { return perSecond(i.Failed, i) },
	}
	answeredShare = timeline{
		"Requests answered, in percent", "Granted or denied, and not failed. Anything below 100 % is bad.",
		"percent of the requests", chart.Percent, chart.Linear,
		func(i interval) float64 { return share(i.Granted+i.Denied, i) },
	}
	grantedShare = timeline{
		"Requests granted, in percent", "It follows from load and limit. Where the lines part, a strategy grants too little or too much.",
		"percent of the requests", chart.Percent, chart.Linear,
		func(i interval) float64 { return share(i.Granted, i) },
	}
	deniedShare = timeline{
		"Requests denied, in percent", "Together with those granted it should be 100 %. The rest failed.",
		"percent of the requests", chart.Percent, chart.Linear,
		func(i interval) float64 { return share(i.Denied, i) },
	}
	grantP50 = timeline{
		"Time to a grant, p50", "Half of the grants took no longer. Lower is better, and it should not rise.",
		"p50 of a grant", chart.Micros, chart.Log,
		func(i interval) float64 { return i.Grants.P50 },
	}
	grantP99 = timeline{
		"Time to a grant, p99", "99 of 100 grants took no longer. A line that keeps rising is a queue that grows.",
		"p99 of a grant", chart.Micros, chart.Log,
		func(i interval) float64 { return i.Grants.P99 },
	}
	denialP50 = timeline{
		"Time to a denial, p50", "Half of the denials took no longer. Lower is better, and it should not rise.",
		"p50 of a denial", chart.Micros, chart.Log,
		func(i interval) float64 { return i.Denials.P50 },
	}
	denialP99 = timeline{
		"Time to a denial, p99", "99 of 100 denials took no longer. Bad if refusing a caller costs more than serving it.",
		"p99 of a denial", chart.Micros, chart.Log,
		func(i interval) float64 { return i.Denials.P99 },
	}
	grantMean = timeline{
		"Mean time to a grant", "A few very slow grants lift the mean far above p50.",
		"mean of a grant", chart.Micros, chart.Log,
		func(i interval) float64 { return i.Grants.Mean },
	}
	denialMean = timeline{
		"Mean time to a denial", "A few very slow denials lift the mean far above p50.",
		"mean of a denial", chart.Micros, chart.Log,
		func(i interval) float64 { return i.Denials.Mean },
	}
	grantMax = timeline{
		"Longest time to a grant", "The slowest grant of each interval. Peaks as high as the timeout are bad.",
		"slowest grant", chart.Micros, chart.Log,
		func(i interval) float64 { return i.Grants.Max },
	}
	denialMax = timeline{
		"Longest time to a denial", "The slowest denial of each interval. Peaks as high as the timeout are bad.",
		"slowest denial", chart.Micros, chart.Log,
		func(i interval) float64 { return i.Denials.Max },
	}
	requestMean = timeline{
		"Mean time of a request", "Grants and denials together. It should stay level when the load rises.",
		"mean of a request", chart.Micros, chart.Log,
		func(i interval) float64 { return joined(i.Grants, i.Granted, i.Denials, i.Denied).Mean },
	}
	tripsOverTime = timeline{
		"Round trips over time", "What the server was asked. Fewer for the same throughput leaves the server room for other work.",
		"round trips per second", chart.Number, chart.Linear,
		func(i interval) float64 { return perSecond(i.RoundTrips, i) },
	}
	walOverTime = timeline{
		"Write-ahead log over time", "What replicas and backups have to carry. Denials should write next to nothing.",
		"bytes of WAL per second", chart.Bytes, chart.Linear,
		func(i interval) float64 { return known(i.WALBytes) / i.Length },
	}
	deadlocksOverTime = timeline{
		"Deadlocks since the start", "There should be none. Each one is a request that waited about a second and then failed.",
		"deadlocks so far", chart.Number, chart.Linear,
		func(i interval) float64 { return float64(i.Before) + known(i.Deadlocks) },
	}
)

func perSecond(n int64, i interval) float64 { return float64(n) / i.Length }

// share of the requests of an interval, in percent. NaN: there were no requests.
func share(n int64, i interval) float64 {
	return 100 * float64(n) / float64(i.Granted+i.Denied+i.Failed)
}

func (t timeline) draw(a *album, id, number string) chart.Picture {
	l := chart.Lines{
		ID: id, Title: a.title(number, t.title), Caption: t.caption,
		X:       chart.Axis{Label: "time since the start", Unit: chart.Seconds},
		Y:       chart.Axis{Label: t.label, Unit: t.unit, Scale: t.scale},
		Changes: a.changes(),
	}
	// A run of zeros only is no picture.
	something := false
	for _, line := range a.lines {
		series := chart.Series{Name: line.strategy, Style: line.style}
		for _, i := range line.intervals {
			if !(i.Length > 0) {
				continue
			}
			y := t.of(i)
			something = something || y != 0 && !math.IsNaN(y)
			series.Points = append(series.Points, chart.Point{X: a.moment(i.Seconds), Y: y})
		}
		l.Series = append(l.Series, series)
	}
	if !something {
		return nil
	}
	return l
}

// moment is a time without the digits below a tenth of an interval, in which the runs of
// the strategies differ: their numbers then are in one row of the table.
func (a *album) moment(seconds float64) float64 {
	if a.grain <= 0 {
		return seconds
	}
	return math.Round(seconds/a.grain) * a.grain
}

// changes of the load, where it has phases, and the restart of the server.
func (a *album) changes() []chart.Change {
	p := a.scenario.Parameters
	var all []chart.Change
	if len(p.Phases) > 1 {
		at := 0.0
		for _, phase := range p.Phases {
			all = append(all, chart.Change{X: at, Label: phaseRate(phase)})
			at += phase.Seconds
		}
	}
	if p.RestartAfterSeconds > 0 {
		all = append(all, chart.Change{X: p.RestartAfterSeconds, Label: "restart"})
	}
	return all
}

// grain for moments of these series: a tenth of the power of ten below their interval.
func grain(series []result.Point) float64 {
	if len(series) == 0 || !(series[0].Seconds > 0) {
		return 0
	}
	return math.Pow(10, math.Floor(math.Log10(series[0].Seconds*1.05))-1)
}
