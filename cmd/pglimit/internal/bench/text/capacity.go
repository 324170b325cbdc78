package text

import (
	"fmt"
	"slices"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// Capacity says how much each strategy can do: the highest arrival rate with p99 under
// the bound, and the sweep over callers.
func Capacity(r result.Report) string {
	if len(r.Capacity) == 0 {
		return ""
	}
	top := []string{clip(server(r.Server), Width)}
	if len(r.Scenarios) > 0 {
		s := r.Scenarios[0]
		top = append(top, clip(load(s.Parameters)+"; "+pools(s.Parameters), Width))
	}
	return text(top, highest(r.Capacity), sweep(r.Capacity), capacityNotes(r))
}

// highest rate of each strategy, the most first.
func highest(list []result.Capacity) []string {
	ordered := slices.Clone(list)
	slices.SortStableFunc(ordered, func(a, b result.Capacity) int {
		switch {
		case a.Rate > b.Rate:
			return -1
		case a.Rate < b.Rate:
			return 1
		}
		return 0
	})
	rows := [][]string{{"highest arrival rate", "per second", "p99 there", "bound", "probes", "verdict"}}
	for _, c := range ordered {
		rate, p99, verdict := "none", None, None
		if len(c.Probes) == 0 { // interrupted
			rate = Unknown
		}
		if c.Rate > 0 {
			rate = Number(c.Rate)
			if at := probe(c); at != nil {
				p99, verdict = Micros(at.P99), at.Verdict
			}
		}
		rows = append(rows, []string{short(c.Strategy), rate, p99, Micros(c.P99Bound), Count(int64(len(c.Probes))), verdict})
	}
	return paged(rows)
}

// probe that found the highest rate.
func probe(c result.Capacity) *result.CapacityPoint {
	for i := range c.Probes {
		if p := &c.Probes[i]; p.Kept && p.Rate == c.Rate {
			return p
		}
	}
	return nil
}

// sweep over callers: decisions/s and p99 of each strategy.
func sweep(list []result.Capacity) []string {
	var callers []int
	top := []string{"callers"}
	for _, c := range list {
		for _, p := range c.Sweep {
			if !slices.Contains(callers, p.Callers) {
				callers = append(callers, p.Callers)
			}
		}
		top = append(top, short(c.Strategy))
	}
	if len(callers) == 0 {
		return nil
	}
	slices.Sort(callers)
	rows := [][]string{top}
	for _, n := range callers {
		cells := []string{Count(int64(n))}
		for _, c := range list {
			cells = append(cells, swept(c.Sweep, n))
		}
		rows = append(rows, cells)
	}
	return append([]string{"Closed loop: decisions per second (p99 in ms)"}, paged(rows)...)
}

func swept(points []result.CapacityPoint, callers int) string {
	i := slices.IndexFunc(points, func(p result.CapacityPoint) bool { return p.Callers == callers })
	if i < 0 {
		return None
	}
	p := points[i]
	cell := fmt.Sprintf("%s (%s)", Number(p.DecisionsPerSecond), Millis(p.P99))
	if p.FailedShare > 0 {
		cell += " !"
	}
	return cell
}

func capacityNotes(r result.Report) []string {
	none, failed := false, false
	for _, c := range r.Capacity {
		none = none || c.Rate == 0
		failed = failed || slices.ContainsFunc(c.Sweep, func(p result.CapacityPoint) bool { return p.FailedShare > 0 })
	}
	notes := "Above the highest rate p99 exceeds the bound, or arrivals are not served in time."
	if none {
		notes += " none: at no rate that was tried did p99 stay under the bound."
	}
	if failed {
		notes += " !: some requests failed."
	}
	if r.Interrupted {
		notes += " Interrupted: the search was not finished."
	}
	return wrap(notes, Width, 0)
}
