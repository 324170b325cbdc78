// Package metric is what can be said of a run in one figure. Conditions of --fail-if, the comparison of two reports,
// --details and the tables of the page know the same figures by the same names.
package metric

import (
	"fmt"
	"math"
	"slices"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/format"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// Metric of a run.
type Metric struct {
	Name string
	Unit Unit
	Of   func(result.Run) float64 // NaN: it is not known. [None]: there is none
}

// Unit of a metric.
type Unit int

// The units.
const (
	Rate   Unit = iota // per second: more is better, of all others less
	Number             // per decision
	Count              // in a run; what happened in several is added up
	Share              // of 1
	Time               // in microseconds
)

// None is the figure of what was not there: of denials where nothing was denied, of a stage that was off.
var None = math.Inf(1)

// All metrics, in the order in which tables show them.
var All = slices.Concat(
	[]Metric{
		{"decisions/s", Rate, func(run result.Run) float64 { return run.DecisionsPerSecond }},
		{"grants/s", Rate, func(run result.Run) float64 { return run.GrantsPerSecond }},
		{"denials/s", Rate, func(run result.Run) float64 { return run.DenialsPerSecond }},
	},
	latencies("", func(run result.Run) result.Latency { return run.Latency }),
	latencies("(grant)", func(run result.Run) result.Latency { return run.GrantLatency }),
	latencies("(denial)", func(run result.Run) result.Latency { return run.DenialLatency }),
	[]Metric{
		{"granted", Count, func(run result.Run) float64 { return float64(run.Granted) }},
		{"denied", Count, func(run result.Run) float64 { return float64(run.Denied) }},
		{"contended", Share, decided(result.Run.ContendedShare)},
		{"failed", Count, func(run result.Run) float64 { return float64(run.Failed()) }},
		{"errors", Share, result.Run.FailedShare},
		{"deadlocks", Count, func(run result.Run) float64 { return float64(run.Errors[result.Deadlock]) }},
		{"trips/decision", Number, decided(result.Run.TripsPerDecision)},
		{"wal/decision", Number, result.Run.WALPerDecision},
		{"callers/trip", Number, func(run result.Run) float64 { return where(run.Stages.Combining, run.Stages.CallersPerRoundTrip) }},
		{"requests/trip", Number, func(run result.Run) float64 { return where(run.Stages.Combining, run.Stages.RequestsPerRoundTrip) }},
		{"from_memory", Share, func(run result.Run) float64 { return where(run.Stages.Memory, run.Stages.RememberedRatio) }},
		{"from_leases", Share, func(run result.Run) float64 { return where(run.Stages.Leases, run.Stages.LeasedRatio) }},
		{"audited", Count, audited(func(a result.Audit) int64 { return a.Audited })},
		{"over", Count, audited(func(a result.Audit) int64 { return a.OverTokens })},
		{"not_due", Count, audited(func(a result.Audit) int64 { return a.DenialsNotDue })},
	})

// Main are those to look at first.
var Main = Named("decisions/s", "grants/s", "denials/s", "p50(grant)", "p99(grant)", "p50(denial)", "p99(denial)", "contended", "failed", "trips/decision", "wal/decision")

// Named returns the metrics of those names. One that there is not is left out.
func Named(names ...string) (some []Metric) {
	for _, name := range names {
		if i := slices.IndexFunc(All, func(m Metric) bool { return m.Name == name }); i >= 0 {
			some = append(some, All[i])
		}
	}
	return some
}

// latencies of all decisions, of grants or of denials.
func latencies(suffix string, of func(result.Run) result.Latency) (all []Metric) {
	for _, l := range []struct {
		name string
		of   func(result.Latency) float64
	}{
		{"p50", func(l result.Latency) float64 { return l.P50 }},
		{"p90", func(l result.Latency) float64 { return l.P90 }},
		{"p99", func(l result.Latency) float64 { return l.P99 }},
		{"p99.9", func(l result.Latency) float64 { return l.P999 }},
		{"p99.99", func(l result.Latency) float64 { return l.P9999 }},
		{"max", func(l result.Latency) float64 { return l.Max }},
		{"mean", func(l result.Latency) float64 { return l.Mean }},
	} {
		all = append(all, Metric{l.name + suffix, Time, func(run result.Run) float64 {
			if suffix == "(denial)" && run.Decisions > 0 && run.Denied == 0 {
				return None
			}
			latency := of(run)
			return latency.Known(l.of(latency))
		}})
	}
	return all
}

// ErrorsOf a kind, which a report has.
func ErrorsOf(kind string) Metric {
	return Metric{"  " + kind, Count, func(run result.Run) float64 { return float64(run.Errors[kind]) }}
}

func where(there bool, figure float64) float64 {
	if there {
		return figure
	}
	return None
}

func audited(of func(result.Audit) int64) func(result.Run) float64 {
	return func(run result.Run) float64 {
		if run.Audit == nil {
			return math.NaN()
		}
		return float64(of(*run.Audit))
	}
}

func decided(of func(result.Run) float64) func(result.Run) float64 {
	return func(run result.Run) float64 {
		if run.Decisions == 0 {
			return math.NaN()
		}
		return of(run)
	}
}

// Write writes a figure: "-" where there is none.
func (m Metric) Write(figure float64) string {
	switch {
	case math.IsInf(figure, 0):
		return "-"
	case m.Unit == Share:
		return format.Percent(figure)
	case m.Unit == Time:
		return format.Micros(figure)
	}
	return format.Number(figure)
}

// Median writes the median of several rounds, and by how much they differ from it.
func (m Metric) Median(f result.Figure) string {
	text := m.Write(f.Median)
	if f.Runs > 1 && f.Spread() > 0 {
		text += fmt.Sprintf(" ±%.0f%%", math.Ceil(50*f.Spread()))
	}
	return text
}

// Cell writes the figure of a row's rounds: the median, or the sum of a [Count], of which a median would hide what
// should not be there at all.
func (m Metric) Cell(row result.Row) string {
	if m.Unit != Count {
		return m.Median(row.Figure(m.Of))
	}
	sum := 0.0
	for _, run := range row.Runs {
		sum += m.Of(run)
	}
	return m.Write(sum)
}
