package text

import (
	"fmt"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	pretty "github.com/jedib0t/go-pretty/v6/text"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/compare"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// Details has all figures: for each scenario what was run, a table with a column per
// strategy, and notes that help to read the numbers.
func Details(r result.Report) string {
	from := server(r.Server)
	var paragraphs [][]string
	groups := r.Groups()
	for i, g := range groups {
		var lines []string
		if i == 0 {
			lines = append(lines, from)
		}
		if g.Scenario.Title != "" {
			lines = append(lines, g.Scenario.Title)
		}
		lines = append(lines, loadLines(g)...)
		paragraphs = append(paragraphs, lines, []string{detailTable(g)}, detailNotes(g))
	}
	if len(groups) == 0 {
		paragraphs = append(paragraphs, []string{from})
	}
	if r.Interrupted {
		paragraphs = append(paragraphs, []string{"Interrupted: the last run is shorter than it was to be, or missing."})
	}
	return text(paragraphs...)
}

// loadLines describe the load of a scenario in full.
func loadLines(g result.Group) []string {
	p := g.Scenario.Parameters
	loop := "closed loop of " + Plural(int64(p.Callers), "caller")
	switch {
	case len(p.Phases) > 0:
		loop = fmt.Sprintf("%s loop, %s, up to %s at once", p.Loop, phases(p.Phases), Count(int64(p.Callers)))
	case p.RPS > 0:
		loop = fmt.Sprintf("open loop, %s arrivals/s (%s), up to %s at once", Number(p.RPS), p.Arrivals, Count(int64(p.Callers)))
	}
	keys := Plural(int64(p.Keys), "key")
	if p.Keys > 1 {
		keys += " (" + p.Distribution
		if p.Exponent > 0 {
			keys += " " + Small(p.Exponent)
		}
		if p.WithRows {
			keys += ", each with a row"
		}
		keys += ")"
	}
	keys += fmt.Sprintf(", limit %s each, %s, %s", p.Limit, cost(p), p.Durability)
	if p.TimeoutSeconds > 0 {
		keys += ", timeout " + Seconds(p.TimeoutSeconds)
	}
	lines := []string{loop + "; " + pools(p), keys, stagesText(p)}
	if made := trouble(p); len(made) > 0 {
		lines = append(lines, strings.Join(made, ", "))
	}
	last := fmt.Sprintf("%s each after %s of warm-up, seed %d", Seconds(p.DurationSeconds), Seconds(p.WarmupSeconds), p.Seed)
	if n := roundsIn(g); n > 1 {
		last += fmt.Sprintf("; medians of %d rounds, ± half their range", n)
	}
	return append(lines, last)
}

func phases(list []result.Phase) string {
	var parts []string
	for _, p := range list {
		rate := Number(p.From)
		if p.To != p.From {
			rate += " to " + Number(p.To)
		}
		parts = append(parts, rate+"/s for "+Seconds(p.Seconds))
	}
	return strings.Join(parts, ", ")
}

func roundsIn(g result.Group) (n int) {
	for _, row := range g.Rows {
		n = max(n, len(row.Runs))
	}
	return n
}

// detailTable has blocks of figures in rows, and strategies in columns.
func detailTable(g result.Group) string {
	t := table.NewWriter()
	style := table.StyleRounded
	style.Format.Header = pretty.FormatDefault
	t.SetStyle(style)

	top := table.Row{""}
	columns := []table.ColumnConfig{{Number: 1, Align: pretty.AlignLeft}}
	for i, row := range g.Rows {
		top = append(top, strings.Replace(row.Strategy, compare.PublishedPrefix, "published\n", 1))
		columns = append(columns, table.ColumnConfig{Number: i + 2, Align: pretty.AlignRight, AlignHeader: pretty.AlignRight})
	}
	t.AppendHeader(top)
	t.SetColumnConfigs(columns)
	for i, block := range figures(g) {
		if i > 0 {
			t.AppendSeparator()
		}
		for _, line := range block {
			cells := table.Row{line.name}
			for _, row := range g.Rows {
				cells = append(cells, line.cell(row))
			}
			t.AppendRow(cells)
		}
	}
	return t.Render()
}

// anyRun of the group has that.
func anyRun(g result.Group, has func(result.Run) bool) bool {
	return slices.ContainsFunc(g.Rows, func(row result.Row) bool { return slices.ContainsFunc(row.Runs, has) })
}
