package text

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/format"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// Details has all figures of all loads, a table with a column per strategy for each.
func Details(r result.Report) string {
	var all [][]string
	for _, g := range r.Groups() {
		top := append([]string{clip(g.Scenario.Title)}, loadLines(g.Scenario.Parameters)...)
		all = append(all, append(top, table(g, true)...))
	}
	return paragraphs(append([][]string{{clip(place(r) + rounds(r))}}, all...)...)
}

// single is the table of the only load: the figures that matter most.
func single(g result.Group) []string { return table(g, false) }

// loadLines describe a load in full.
func loadLines(p result.Parameters) []string {
	var parts []string
	say := func(when bool, f string, args ...any) {
		if when {
			parts = append(parts, fmt.Sprintf(f, args...))
		}
	}
	say(p.Loop == "closed", "closed loop of %s", format.Plural(int64(p.Callers), "caller"))
	if p.Loop == "open" {
		rates := []string{format.Number(p.RPS) + "/s"}
		for i, phase := range p.Phases {
			if i == 0 {
				rates = nil
			}
			rate := format.Number(phase.From)
			if phase.To != phase.From {
				rate += " to " + format.Number(phase.To)
			}
			rates = append(rates, rate+"/s for "+format.Seconds(phase.Seconds))
		}
		say(true, "open loop, %s arrivals: %s; at most %s at once", p.Arrivals, strings.Join(rates, ", "), format.Count(int64(p.Callers)))
	}
	say(true, "%s of %s", format.Plural(int64(p.Instances), "instance"), format.Plural(int64(p.Conns), "connection"))
	keys := format.Plural(int64(p.Keys), "key") + " of " + p.Limit
	if p.Exponent > 0 {
		keys += fmt.Sprintf(" (%s %v)", p.Distribution, p.Exponent)
	}
	say(true, "%s", keys)
	say(p.WithRows, "each with a row")
	for _, c := range p.Costs {
		say(true, "%s cost %d", format.Percent(c.Share), c.Tokens)
	}
	say(p.Cost > 1 && len(p.Costs) == 0, "cost %d", p.Cost)
	say(true, "%s", p.Durability)
	say(p.TimeoutSeconds > 0, "timeout %s", format.Seconds(p.TimeoutSeconds))
	var stages []string
	for _, stage := range []struct {
		on   bool
		name string
	}{{p.Combining, "combining"}, {p.Memory, "memory of denials"}, {p.Leases, "leases"}} {
		if stage.on {
			stages = append(stages, stage.name)
		}
	}
	say(len(stages) > 0, "%s", strings.Join(stages, " and "))
	say(len(stages) == 0, "one round trip per decision")
	say(p.AddedLatencySeconds > 0, "%s added to each round trip", format.Seconds(p.AddedLatencySeconds))
	say(true, "%s after %s of warm-up, seed %d", format.Seconds(p.DurationSeconds), format.Seconds(p.WarmupSeconds), p.Seed)
	return wrap(strings.Join(parts, "; "), 2)
}

// figure of a strategy under a load: a row of a table, which is left out if no strategy has it.
type figure struct {
	name   string
	main   bool // it is shown without --details too
	write  func(float64) string
	of     func(result.Run) float64 // NaN: not known, or not there
	summed bool                     // over the rounds: a median would hide what should not be there at all
}

// none is the figure of what was not there.
var none = math.Inf(1)

func when(there bool, f float64) float64 {
	if there {
		return f
	}
	return none
}

func table(g result.Group, all bool) []string {
	head := []string{""}
	for _, row := range g.Rows {
		head = append(head, row.Strategy)
	}
	var rows [][]string
	for _, f := range figures(g) {
		cells := []string{f.name}
		there := false
		for _, row := range g.Rows {
			cell := f.cell(row)
			there = there || cell != "-"
			cells = append(cells, cell)
		}
		if there && (f.main || all) {
			rows = append(rows, cells)
		}
	}
	for _, w := range []struct {
		name string
		main bool
		of   func(result.Row) string
	}{
		{"limit", false, func(row result.Row) string { return row.Runs[0].Limit }},
		{"storage", false, func(row result.Row) string { return row.Runs[0].Storage }},
		{"verdict", true, result.Row.Verdict},
	} {
		cells := []string{w.name}
		for _, row := range g.Rows {
			cells = append(cells, w.of(row))
		}
		if w.main || all {
			rows = append(rows, cells)
		}
	}
	return grid(head, rows)
}

// cell is the median of the rounds and by how much they differ from it, or their sum.
func (f figure) cell(row result.Row) string {
	figure := row.Figure(f.of)
	switch {
	case figure.Runs > 0 && math.IsInf(figure.High, 1):
		return "-"
	case f.summed && figure.Runs == len(row.Runs):
		sum := 0.0
		for _, run := range row.Runs {
			sum += f.of(run)
		}
		return f.write(sum)
	}
	cell := f.write(figure.Median)
	if figure.Runs > 1 && figure.Spread() > 0 {
		cell += fmt.Sprintf(" ±%.0f%%", math.Ceil(50*figure.Spread()))
	}
	return cell
}

func figures(g result.Group) (all []figure) {
	add := func(name string, main bool, write func(float64) string, of func(result.Run) float64) {
		all = append(all, figure{name, main, write, of, false})
	}
	sum := func(name string, main bool, of func(result.Run) float64) {
		all = append(all, figure{name, main, format.Whole, of, true})
	}
	writeUp, known := g.Scenario.AtMost > 0, result.Known[int64]
	if writeUp {
		add("granted", true, format.Whole, func(run result.Run) float64 { return float64(run.Granted) })
		add("at most", true, format.Whole, func(result.Run) float64 { return float64(g.Scenario.AtMost) })
		add("possible", true, format.Whole, func(run result.Run) float64 { return when(run.Possible > 0, float64(run.Possible)) })
	}
	add("decisions/s", !writeUp, format.Number, func(run result.Run) float64 { return run.DecisionsPerSecond })
	add("grants/s", !writeUp, format.Number, func(run result.Run) float64 { return run.GrantsPerSecond })
	add("denials/s", !writeUp, format.Number, func(run result.Run) float64 { return run.DenialsPerSecond })
	for _, part := range []struct {
		name string
		main bool
		of   func(result.Run) result.Latency
	}{
		{"latency", writeUp, func(run result.Run) result.Latency { return run.Latency }},
		{"grant", !writeUp, func(run result.Run) result.Latency { return run.GrantLatency }},
		{"denial", !writeUp, func(run result.Run) result.Latency { return run.DenialLatency }},
	} {
		for _, q := range []struct {
			name string
			main bool
			of   func(result.Latency) float64
		}{
			{"p50", true, func(l result.Latency) float64 { return l.P50 }}, {"p90", false, func(l result.Latency) float64 { return l.P90 }},
			{"p99", true, func(l result.Latency) float64 { return l.P99 }}, {"p99.9", false, func(l result.Latency) float64 { return l.P999 }},
			{"slowest", writeUp, func(l result.Latency) float64 { return l.Max }},
		} {
			add(part.name+" "+q.name, part.main && q.main, format.Micros, func(run result.Run) float64 {
				l := part.of(run)
				return when(l.Count > 0, q.of(l))
			})
		}
	}
	if !writeUp {
		sum("granted tokens", false, func(run result.Run) float64 { return float64(run.Granted) })
	}
	sum("denied", writeUp, func(run result.Run) float64 { return float64(run.Denied) })
	sum("contended", true, func(run result.Run) float64 { return float64(run.Contended) })
	sum("failed", true, func(run result.Run) float64 { return float64(run.Failed()) })
	for _, kind := range errorKinds(g) {
		sum("  "+kind, false, func(run result.Run) float64 { return float64(run.Errors[kind]) })
	}
	sum("deadlocks", writeUp, func(run result.Run) float64 { return known(run.Deadlocks) })

	add("round trips/decision", !writeUp, format.Number, result.Run.TripsPerDecision)
	stage := func(name string, on func(result.Stages) bool, write func(float64) string, of func(result.Stages) float64) {
		add(name, false, write, func(run result.Run) float64 { return when(on(run.Stages), of(run.Stages)) })
	}
	combining := func(s result.Stages) bool { return s.Combining }
	memory := func(s result.Stages) bool { return s.Memory }
	leases := func(s result.Stages) bool { return s.Leases }
	stage("callers/round trip", combining, format.Number, func(s result.Stages) float64 { return s.CallersPerRoundTrip })
	stage("requests/round trip", combining, format.Number, func(s result.Stages) float64 { return s.RequestsPerRoundTrip })
	stage("from memory", memory, format.Percent, func(s result.Stages) float64 { return s.RememberedRatio })
	stage("from leases", leases, format.Percent, func(s result.Stages) float64 { return s.LeasedRatio })
	stage("trips for leases", leases, format.Whole, func(s result.Stages) float64 { return float64(s.LeaseTrips) })
	stage("leased, unspent", leases, format.Whole, func(s result.Stages) float64 { return float64(s.UnspentTokens) })
	leavers := func(s result.Stages) bool { return s.PassedOnTokens+s.GivenBackTokens+s.LostTokens > 0 }
	stage("of leavers, passed on", leavers, format.Whole, func(s result.Stages) float64 { return float64(s.PassedOnTokens) })
	stage("of leavers, given back", leavers, format.Whole, func(s result.Stages) float64 { return float64(s.GivenBackTokens) })
	stage("of leavers, lost", leavers, format.Whole, func(s result.Stages) float64 { return float64(s.LostTokens) })

	add("WAL bytes/decision", !writeUp, format.Number, result.Run.WALPerDecision)

	audit := func(name string, of func(result.Audit) float64) {
		sum(name, false, func(run result.Run) float64 {
			if run.Audit == nil {
				return none
			}
			return of(*run.Audit)
		})
	}
	audit("audited grants", func(a result.Audit) float64 { return float64(a.AuditedGrants) })
	audit("audited denials", func(a result.Audit) float64 { return float64(a.AuditedDenials) })
	audit("over, tokens", func(a result.Audit) float64 { return float64(a.OverTokens) })
	audit("undue denials", func(a result.Audit) float64 { return float64(a.DenialsNotDue) })
	return all
}

// errorKinds that any run of the group had.
func errorKinds(g result.Group) []string {
	kinds := map[string]bool{}
	for _, row := range g.Rows {
		for _, run := range row.Runs {
			for kind := range run.Errors {
				kinds[kind] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(kinds))
}
