package text

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// figure is a line of the details.
type figure struct {
	name string
	cell func(result.Row) string
}

// median of the rounds, with their spread if there are several.
func median(name string, write func(float64) string, of func(result.Run) float64) figure {
	return figure{name, func(row result.Row) string {
		f := row.Figure(of)
		cell := write(f.Median)
		if f.Runs > 1 {
			cell += " (" + Spread(f.Spread()) + ")"
		}
		return cell
	}}
}

// sum over the rounds, for what should not be there at all: a median would hide it.
func sum(g result.Group, name string, of func(result.Run) float64) figure {
	if roundsIn(g) > 1 {
		name += ", all rounds"
	}
	return figure{name, func(row result.Row) string {
		total := 0.0
		for _, run := range row.Runs {
			total += of(run) // not a number, if one is not known
		}
		return whole(total)
	}}
}

// whole writes a count.
func whole(f float64) string {
	if math.IsNaN(f) {
		return Unknown
	}
	return Count(int64(f))
}

// middle is the lower of two runs in the middle, for a count that says more as it is than
// with a spread.
func middle(name string, of func(result.Run) int64) figure {
	return figure{name, func(row result.Row) string {
		return whole(row.Figure(func(run result.Run) float64 { return float64(of(run)) }).Median)
	}}
}

func figures(g result.Group) [][]figure {
	ran := []figure{{"storage", storage}}
	if anyRun(g, func(run result.Run) bool { return run.Adapted }) {
		ran = append([]figure{{"limit", limit(g.Scenario.Parameters.Cost)}}, ran...)
	}
	blocks := [][]figure{
		ran,
		{
			median("decisions/s", Number, func(run result.Run) float64 { return run.DecisionsPerSecond }),
			median("grants/s", Number, func(run result.Run) float64 { return run.GrantsPerSecond }),
			median("denials/s", Number, func(run result.Run) float64 { return run.DenialsPerSecond }),
		},
		latencies("latency", func(run result.Run) (result.Latency, int64) { return run.Latency, run.Latency.Count }),
		latencies("grant", func(run result.Run) (result.Latency, int64) { return run.GrantLatency, run.Allowed }),
		latencies("denial", func(run result.Run) (result.Latency, int64) { return run.DenialLatency, run.Denied }),
		append([]figure{
			middle("allowed", func(run result.Run) int64 { return run.Allowed }),
			middle("granted tokens", func(run result.Run) int64 { return run.Granted }),
			middle("denied", func(run result.Run) int64 { return run.Denied }),
			middle("of them contended", func(run result.Run) int64 { return run.Contended }),
		}, errorFigures(g)...),
		stageFigures(g),
		{
			sum(g, "deadlocks", func(run result.Run) float64 { return result.Known(run.Deadlocks) }),
			median("WAL bytes/decision", Number, result.Run.WALPerDecision),
			median("transaction ids/decision", decimals, func(run result.Run) float64 { return result.Known(run.TransactionIDsPerDecision) }),
			{"dead tuples", func(row result.Row) string {
				return whole(row.Figure(func(run result.Run) float64 { return result.Known(run.DeadTuples) }).Median)
			}},
			{"HOT updates", hot},
		},
	}
	if anyRun(g, func(run result.Run) bool { return run.Audit != nil }) {
		blocks = append(blocks, auditFigures())
	}
	return blocks
}

func latencies(of string, latency func(result.Run) (l result.Latency, n int64)) []figure {
	line := func(name string, which func(result.Latency) float64) figure {
		f := median(name, Micros, func(run result.Run) float64 {
			l, _ := latency(run)
			return l.Known(which(l))
		})
		return figure{name, func(row result.Row) string {
			if !slices.ContainsFunc(row.Runs, func(run result.Run) bool { _, n := latency(run); return n > 0 }) {
				return None
			}
			return f.cell(row)
		}}
	}
	return []figure{
		line(of+" p50", func(l result.Latency) float64 { return l.P50 }),
		line("p90", func(l result.Latency) float64 { return l.P90 }),
		line("p99", func(l result.Latency) float64 { return l.P99 }),
		line("p99.9", func(l result.Latency) float64 { return l.P999 }),
		line("max", func(l result.Latency) float64 { return l.Max }),
	}
}

// errorFigures has a line for each kind of error that any strategy had, or one that says
// that there was none.
func errorFigures(g result.Group) []figure {
	kinds := map[string]bool{}
	for _, row := range g.Rows {
		for _, run := range row.Runs {
			for kind := range run.Errors {
				kinds[kind] = true
			}
		}
	}
	if len(kinds) == 0 {
		return []figure{{"errors", func(result.Row) string { return "0" }}}
	}
	var lines []figure
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		lines = append(lines, sum(g, "error "+kind, func(run result.Run) float64 { return float64(run.Errors[kind]) }))
	}
	return lines
}

func auditFigures() []figure {
	return []figure{
		{"audited grants", func(row result.Row) string {
			return ofAudit(row, func(a result.Audit) float64 { return float64(a.AuditedGrants) }, whole)
		}},
		{"audited denials", func(row result.Row) string {
			n := ofAudit(row, func(a result.Audit) float64 { return float64(a.AuditedDenials) }, whole)
			return n + ofAudit(row, func(a result.Audit) float64 { return a.DenialSampling }, oneOf)
		}},
		{"verdict", result.Row.Verdict},
	}
}

// oneOf says 1 of how many was audited, if it is a sample.
func oneOf(sampling float64) string {
	if !(sampling > 1) {
		return ""
	}
	return " (1 of " + Number(sampling) + ")"
}

// ofAudit writes the median of a figure of the audits.
func ofAudit(row result.Row, of func(result.Audit) float64, write func(float64) string) string {
	f := row.Figure(func(run result.Run) float64 {
		if run.Audit == nil {
			return math.NaN()
		}
		return of(*run.Audit)
	})
	if text := write(f.Median); f.Runs > 0 || text == "" {
		return text
	}
	return None
}

func storage(row result.Row) string {
	if s := row.Runs[0].Storage; s != nil && *s != "" {
		return *s
	}
	return Unknown
}

// limit says which limit the strategy ran under, and its cost if that is not the others'.
func limit(cost int64) func(result.Row) string {
	return func(row result.Row) string {
		run := row.Runs[0]
		if run.Cost == cost {
			return run.Limit
		}
		return fmt.Sprintf("%s, cost %d", run.Limit, run.Cost)
	}
}

// hot is the share of updates that touched no index. There is none without updates, which
// the server has said if it has said anything.
func hot(row result.Row) string {
	ratio := row.Figure(func(run result.Run) float64 { return result.Known(run.HOTUpdateRatio) })
	switch {
	case ratio.Runs > 0:
		return fmt.Sprintf("%.1f %%", 100*ratio.Median)
	case slices.ContainsFunc(row.Runs, func(run result.Run) bool { return run.DeadTuples != nil }):
		return "no updates"
	}
	return Unknown
}

func decimals(f float64) string {
	if math.IsNaN(f) {
		return Unknown
	}
	return fmt.Sprintf("%.3f", f)
}
