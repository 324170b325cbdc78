package text

import (
	"maps"
	"slices"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/metric"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// Details has all figures of all loads, a table with a column per strategy for each.
func Details(r result.Report) string {
	var all [][]string
	for _, g := range r.Groups() {
		top := append([]string{clip(g.Scenario.Title)}, wrap(g.Scenario.Words(), 2)...)
		all = append(all, append(top, table(g, nil)...))
	}
	return paragraphs(append([][]string{{clip(place(r) + rounds(r))}}, all...)...)
}

// single is the table of the only load: the figures that matter most.
func single(g result.Group) []string {
	if g.Scenario.AtMost > 0 {
		return table(g, metric.Named("granted", "p50", "p99", "max", "denied", "contended", "failed", "deadlocks"))
	}
	return table(g, metric.Main)
}

// table has a row for each of the metrics that any strategy has. Without names it has all there is.
func table(g result.Group, some []metric.Metric) []string {
	all := len(some) == 0
	if all {
		some = slices.Clone(metric.All)
		at := 1 + slices.IndexFunc(some, func(m metric.Metric) bool { return m.Name == "failed" })
		for _, kind := range slices.Backward(errorKinds(g)) {
			some = slices.Insert(some, at, metric.ErrorsOf(kind))
		}
	}
	var rows [][]string
	add := func(name string, of func(result.Row) string) {
		cells, there := []string{name}, false
		for _, row := range g.Rows {
			cell := of(row)
			there = there || cell != "-"
			cells = append(cells, cell)
		}
		if there {
			rows = append(rows, cells)
		}
	}
	for _, m := range some {
		add(m.Name, m.Cell)
	}
	if all {
		add("limit", func(row result.Row) string { return row.Runs[0].Limit })
		add("storage", func(row result.Row) string { return row.Runs[0].Storage })
	}
	add("verdict", result.Row.Verdict)
	head := []string{""}
	for _, row := range g.Rows {
		head = append(head, row.Strategy)
	}
	return grid(head, rows)
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
