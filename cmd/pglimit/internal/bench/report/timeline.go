package report

import (
	"fmt"
	"math"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/chart"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// timeline is a figure over time, with a line per strategy. of returns NaN where there is
// none.
type timeline struct {
	title, caption string
	open, closed   string // said in addition if the loop is of that kind
	label          string
	unit           chart.Unit
	scale          chart.Scale
	of             func(interval) float64

	// events are what a rate counts. Where there are few in an interval, as with one grant
	// in two seconds, several intervals are drawn as one: otherwise the line jumps up and
	// down between two whole numbers.
	events func(interval) int64

	// dull is the number that is no news if all points have it. 0 is always dull.
	dull float64

	// limit is what no line may cross, if there is something like that.
	limit func(result.Scenario) []chart.Limit
}

// The figures over time.
var (
	grantedOverTime = timeline{
		title: "Requests granted over time", label: "granted per second", unit: chart.Number,
		caption: "Level is good. A dip that the others do not have is a strategy that stalls.",
		of:      func(i interval) float64 { return perSecond(i.Granted, i) },
		events:  func(i interval) int64 { return i.Granted },
	}
	deniedOverTime = timeline{
		title: "Requests denied over time", label: "denied per second", unit: chart.Number,
		caption: "Look for dips.",
		open:    " Where a line leaves the others, requests fail.", closed: " More denials only mean that callers asked faster.",
		of:     func(i interval) float64 { return perSecond(i.Denied, i) },
		events: func(i interval) int64 { return i.Denied },
	}
	grantedSoFar = timeline{
		title: "Requests granted so far", label: "granted since the start", unit: chart.Number,
		caption: "What the limit lets through is a straight line. Bad is a line that bends down: requests that were due got nothing.",
		of:      func(i interval) float64 { return float64(i.GrantedSoFar) },
		limit: func(s result.Scenario) []chart.Limit {
			if s.AtMost <= 0 || s.Parameters.Cost > 1 {
				return nil
			}
			return []chart.Limit{{Y: float64(s.AtMost), Label: fmt.Sprintf("at most %d in all", s.AtMost)}}
		},
	}
	failedOverTime = timeline{
		title: "Requests failed over time", label: "failed per second", unit: chart.Number,
		caption: "There should be none: a request that failed got no answer.",
		of:      func(i interval) float64 { return perSecond(i.Failed, i) },
		events:  func(i interval) int64 { return i.Failed },
	}
	answeredShare = timeline{
		title: "Requests answered, in percent", label: "percent of the requests", unit: chart.Percent,
		caption: "Granted or denied, and not failed. Anything below 100 % is bad.",
		of:      func(i interval) float64 { return share(i.Granted+i.Denied, i) },
	}
	grantedShare = timeline{
		title: "Requests granted, in percent", label: "percent of the requests", unit: chart.Percent,
		caption: "It follows from load and limit.",
		open:    " Where the lines part, a strategy grants too little or too much.",
		closed:  " Callers that are refused sooner ask more often, and a smaller part is granted.",
		of:      func(i interval) float64 { return share(i.Granted, i) },
		dull:    100,
		events:  func(i interval) int64 { return i.Granted },
	}
	deniedShare = timeline{
		title: "Requests denied, in percent", label: "percent of the requests", unit: chart.Percent,
		caption: "Together with those granted it should be 100 %. The rest failed.",
		of:      func(i interval) float64 { return share(i.Denied, i) },
	}
	grantP50 = timeline{
		title: "Time to a grant, p50", label: "p50 of a grant", unit: chart.Micros, scale: chart.Log,
		caption: "Half of the grants took no longer. Lower is better, and it should not rise.",
		of:      func(i interval) float64 { return i.Grants.P50 },
	}
	grantP99 = timeline{
		title: "Time to a grant, p99", label: "p99 of a grant", unit: chart.Micros, scale: chart.Log,
		caption: "99 of 100 grants took no longer. A line that keeps rising is a queue that grows.",
		of:      func(i interval) float64 { return i.Grants.P99 },
	}
	denialP50 = timeline{
		title: "Time to a denial, p50", label: "p50 of a denial", unit: chart.Micros, scale: chart.Log,
		caption: "Half of the denials took no longer. Lower is better, and it should not rise.",
		of:      func(i interval) float64 { return i.Denials.P50 },
	}
	denialP99 = timeline{
		title: "Time to a denial, p99", label: "p99 of a denial", unit: chart.Micros, scale: chart.Log,
		caption: "99 of 100 denials took no longer. Bad if refusing a caller costs more than serving it.",
		of:      func(i interval) float64 { return i.Denials.P99 },
	}
	grantMean = timeline{
		title: "Mean time to a grant", label: "mean of a grant", unit: chart.Micros, scale: chart.Log,
		caption: "A few very slow grants lift the mean far above p50.",
		of:      func(i interval) float64 { return i.Grants.Mean },
	}
	denialMean = timeline{
		title: "Mean time to a denial", label: "mean of a denial", unit: chart.Micros, scale: chart.Log,
		caption: "A few very slow denials lift the mean far above p50.",
		of:      func(i interval) float64 { return i.Denials.Mean },
	}
	grantMax = timeline{
		title: "Longest time to a grant", label: "slowest grant", unit: chart.Micros, scale: chart.Log,
		caption: "The slowest grant of each interval. Peaks as high as the timeout are bad.",
		of:      func(i interval) float64 { return i.Grants.Max },
	}
	denialMax = timeline{
		title: "Longest time to a denial", label: "slowest denial", unit: chart.Micros, scale: chart.Log,
		caption: "The slowest denial of each interval. Peaks as high as the timeout are bad.",
		of:      func(i interval) float64 { return i.Denials.Max },
	}
	requestMean = timeline{
		title: "Mean time of a request", label: "mean of a request", unit: chart.Micros, scale: chart.Log,
		caption: "Grants and denials together. It should stay level when the load rises.",
		of:      func(i interval) float64 { return joined(i.Grants, i.Granted, i.Denials, i.Denied).Mean },
	}
	tripsOverTime = timeline{
		title: "Round trips over time", label: "round trips per second", unit: chart.Number,
		caption: "What the server was asked. Fewer for the same throughput leaves the server room for other work.",
		of:      func(i interval) float64 { return perSecond(i.RoundTrips, i) },
	}
	walOverTime = timeline{
		title: "Write-ahead log over time", label: "bytes of WAL per second", unit: chart.Bytes,
		caption: "What replicas and backups have to carry. Denials should write next to nothing.",
		of:      func(i interval) float64 { return result.Known(i.WALBytes) / i.Length },
	}
	deadlocksOverTime = timeline{
		title: "Deadlocks since the start", label: "deadlocks so far", unit: chart.Number,
		caption: "There should be none. Each one is a request that waited about a second and then failed.",
		of:      func(i interval) float64 { return float64(i.DeadlocksSoFar) + 0*result.Known(i.Deadlocks) },
	}
)

// either is what is said of an open loop, or of a closed one.
func (a *album) either(open, closed string) string {
	if a.scenario.Parameters.Loop == "open" {
		return open
	}
	return closed
}

func perSecond(n int64, i interval) float64 { return float64(n) / i.Length }

// share of the requests of an interval, in percent. NaN: there were no requests.
func share(n int64, i interval) float64 {
	return 100 * float64(n) / float64(i.Granted+i.Denied+i.Failed)
}

func (t timeline) draw(a *album, id, number string) chart.Picture {
	l := chart.Lines{
		ID: id, Title: titled(number, t.title), Caption: t.caption + a.either(t.open, t.closed),
		X:       chart.Axis{Label: "time since the start", Unit: chart.Seconds},
		Y:       chart.Axis{Label: t.label, Unit: t.unit, Scale: t.scale},
		Changes: a.changes(),
	}
	if t.limit != nil {
		l.Limits = t.limit(a.scenario)
	}
	every := a.enough(t.events)
	if every > 1 {
		l.Caption += fmt.Sprintf(" As there are few, each point is a mean over %s.", duration(float64(every)*a.lines[0].run.Interval()))
	}
	news := false
	for _, line := range a.lines {
		series := chart.Series{Name: line.strategy, Style: line.style}
		intervals := line.intervals
		if every > 1 {
			intervals = thin(line.run.Series, every)
		}
		for _, i := range intervals {
			if !(i.Length > 0) {
				continue
			}
			y := t.of(i)
			news = news || y != 0 && !math.IsNaN(y) && (y != t.dull || number != "")
			series.Points = append(series.Points, chart.Point{X: a.moment(i.Seconds), Y: y})
		}
		l.Series = append(l.Series, series)
	}
	if !news {
		return nil
	}
	return l
}

// enough is how many points of a series become one so that there are some twenty events in
// it. 1: there are enough, or events is nil. At least twelve points remain.
func (a *album) enough(events func(interval) int64) int {
	if events == nil {
		return 1
	}
	most, shortest := 0.0, math.MaxInt
	for _, line := range a.lines {
		n := int64(0)
		for _, i := range line.intervals {
			n += events(i)
		}
		if points := len(line.run.Series); points > 0 {
			most = max(most, float64(n)/float64(points))
			shortest = min(shortest, points)
		}
	}
	if most == 0 || most >= 5 {
		return 1
	}
	return max(1, min(int(math.Ceil(20/most)), shortest/12))
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
