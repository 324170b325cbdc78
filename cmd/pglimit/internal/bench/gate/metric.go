package gate

import (
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// metric of a run.
type metric struct {
	kind kind

	// of returns the figure, or why there is none.
	of func(result.Run) (f float64, why string)
}

// Why a figure is not known.
const (
	nothingDenied  = "nothing was denied"
	nothingGranted = "nothing was granted"
	nothingDecided = "nothing was decided"
	notAudited     = "the run was not audited"
	notMeasured    = "it was not measured"
	notAsked       = "the server could not be asked"
)

// latencies have a word in parentheses, the others have not.
var latencies = []struct {
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
}

// Of whom a latency is.
const (
	ofAll     = ""
	ofGrants  = "grant"
	ofDenials = "denial"
)

func latencyOf(whose string, of func(result.Latency) float64) metric {
	return metric{duration, func(run result.Run) (float64, string) {
		l, n, none := run.Latency, run.Latency.Count, nothingDecided
		switch whose {
		case ofGrants:
			l, n, none = run.GrantLatency, run.Allowed, nothingGranted
		case ofDenials:
			l, n, none = run.DenialLatency, run.Denied, nothingDenied
			if run.Decisions == 0 {
				none = nothingDecided
			}
		}
		switch {
		case n == 0:
			return 0, none
		case l.Count == 0:
			return 0, notMeasured
		}
		return of(l), ""
	}}
}

// others are the metrics that are no latency.
var others = []struct {
	name string
	metric
}{
	{"decisions/s", always(number, func(run result.Run) float64 { return run.DecisionsPerSecond })},
	{"grants/s", always(number, func(run result.Run) float64 { return run.GrantsPerSecond })},
	{"denials/s", always(number, func(run result.Run) float64 { return run.DenialsPerSecond })},
	{"granted", always(number, func(run result.Run) float64 { return float64(run.Granted) })},
	{"over", audited(func(a result.Audit) int64 { return a.OverTokens })},
	{"not_due", audited(func(a result.Audit) int64 { return a.DenialsNotDue })},
	{"errors", always(share, result.Run.FailedShare)},
	{"failed", always(number, func(run result.Run) float64 { return float64(run.Failed()) })},
	{"deadlocks", asked(func(run result.Run) (float64, bool) {
		if run.Deadlocks == nil {
			return 0, false
		}
		return float64(*run.Deadlocks), true
	})},
	{"contended", perDecision(share, result.Run.ContendedShare)},
	{"trips", perDecision(number, result.Run.TripsPerDecision)},
	{"wal", asked(func(run result.Run) (float64, bool) {
		if run.WALBytesPerDecision == nil {
			return 0, false
		}
		return *run.WALBytesPerDecision, true
	})},
}

func always(k kind, of func(result.Run) float64) metric {
	return metric{k, func(run result.Run) (float64, string) { return of(run), "" }}
}

func audited(of func(result.Audit) int64) metric {
	return metric{number, func(run result.Run) (float64, string) {
		if run.Audit == nil {
			return 0, notAudited
		}
		return float64(of(*run.Audit)), ""
	}}
}

func asked(of func(result.Run) (float64, bool)) metric {
	return metric{number, func(run result.Run) (float64, string) {
		f, known := of(run)
		if !known {
			return 0, notAsked
		}
		return f, ""
	}}
}

func perDecision(k kind, of func(result.Run) float64) metric {
	return metric{k, func(run result.Run) (float64, string) {
		if run.Decisions == 0 {
			return 0, nothingDecided
		}
		return of(run), ""
	}}
}
