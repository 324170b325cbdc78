package text

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/answer"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/format"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// Height that the screen of the default run does not exceed.
const Height = 24

// Screen is the answer of a report: what ran where, a table, the audit, and which strategy to take. left names the
// strategies that there are too, and how to have them.
func Screen(r result.Report, left string) string {
	a := answer.Of(r)
	if len(a.Loads) == 0 {
		return ""
	}
	top, table := []string{clip(place(r) + rounds(r))}, loads(a)
	if len(r.Scenarios) == 1 {
		top = append(top, wrap(r.Scenarios[0].Words(), 2)...)
	}
	var audit []string
	if len(r.Runs) > 0 {
		audit = append(audit, audited(a.Audit))
	}
	if groups := r.Groups(); len(groups) == 1 {
		table = single(groups[0])
	}
	audit = append(audit, faults(a)...)
	if r.Interrupted {
		audit = append(audit, "Interrupted: the last run is shorter than the others, or missing.")
	}
	said := wrap(strings.TrimSpace(a.Headline+". "+a.Because), 0)
	parts := [][]string{top, table, append(audit, said...), wrap(left, 0)}
	for ; strings.Count(paragraphs(parts...), "\n") > Height && len(parts) > 1; parts = parts[:len(parts)-1] { // without empty lines
		parts[len(parts)-2] = slices.Concat(parts[len(parts)-2:]...)
	}
	return paragraphs(parts...)
}

// place says on what it ran.
func place(r result.Report) string {
	number, _, _ := strings.Cut(r.Server.Version, " ") // without the packager's name for it
	at := strings.TrimPrefix(r.Server.Source, "the database of ")
	if strings.Contains(at, "throwaway") {
		at = "a throwaway"
	}
	return fmt.Sprintf("PostgreSQL %s, %s; %s", number, at, format.Plural(int64(r.Client.CPUs), "CPU"))
}

// rounds says how many callers there were, and how often they ran how long: where loads differ, from the least to the
// most.
func rounds(r result.Report) string {
	var callers, times []int64
	var lengths []float64
	for _, g := range r.Groups() {
		most := 0
		for _, row := range g.Rows {
			for _, run := range row.Runs {
				most = max(most, run.Round)
			}
		}
		s := g.Scenario
		callers, times, lengths = append(callers, int64(s.Callers)), append(times, int64(most)), append(lengths, s.Length().Seconds())
	}
	if len(times) == 0 {
		return ""
	}
	many := func(n []int64, what string) string {
		if low := slices.Min(n); low < slices.Max(n) {
			return format.Count(low) + " to " + format.Plural(slices.Max(n), what)
		}
		return format.Plural(n[0], what)
	}
	length := format.Seconds(slices.Min(lengths))
	if most := format.Seconds(slices.Max(lengths)); most != length {
		length += " to " + most
	}
	return fmt.Sprintf("; %s; %s of %s", many(callers, "caller"), many(times, "round"), length)
}

// marks of cells.
const (
	best      = "*"
	tooClose  = "~"
	faulty    = "!"
	contended = "c"
)

// loads is a table with a row for each load and a column for each strategy, and the p99 of the strategy to take and the
// next.
func loads(a answer.Answer) []string {
	head := append([]string{"per second"}, a.Strategies...)
	var some []string
	for _, name := range []string{a.Take, a.Next} {
		if name != "" {
			some = append(some, name)
		}
	}
	if len(some) > 0 {
		head = append(head, "p99, ms")
	}
	var rows [][]string
	var seen []string
	for i, l := range a.Loads {
		title := l.Scenario.Title
		if l.Staged() {
			title, _, _ = strings.Cut(title, ", default stages")
			if i > 0 && !a.Loads[i-1].Staged() {
				rows = append([][]string{{"One round trip per decision:"}}, rows...)
				rows = append(rows, []string{"With the default stages of a Limiter (combining, memory of denials):"})
			}
		} else if l.Unit != answer.Grants && l.Unit != answer.Denials && l.Unit != answer.Arrivals {
			title += ", " + l.Unit
		}
		row := []string{title}
		for _, c := range l.Cells {
			mark := markOf(c)
			seen = append(seen, mark)
			row = append(row, inCell(l, c)+" "+mark)
		}
		if len(some) > 0 {
			var p99 []string
			for _, name := range some {
				p99 = append(p99, fmt.Sprintf("%5s", millis(l.Cell(name).P99.Median)))
			}
			row = append(row, strings.Join(p99, " "))
		}
		rows = append(rows, row)
	}
	notes := legend(seen)
	if len(some) > 0 {
		notes = append(notes, "p99: of "+strings.Join(some, ", then "))
	}
	return append(grid(head, rows), fold(notes)...)
}

// millis are milliseconds; from memory it is less than a microsecond.
func millis(us float64) string {
	switch {
	case math.IsNaN(us):
		return "-"
	case us < 10:
		return "<0.01"
	}
	return format.Number(us / 1000)
}

// fold puts notes on as few lines as hold them.
func fold(notes []string) (lines []string) {
	for _, note := range notes {
		if last := len(lines) - 1; last >= 0 && width(lines[last])+3+width(note) <= Width {
			lines[last] += "   " + note
		} else {
			lines = append(lines, note)
		}
	}
	return lines
}

func inCell(l answer.Load, c answer.Cell) string {
	switch {
	case !c.Ran:
		return "-"
	case l.Unit == answer.Latency:
		return format.Micros(c.Figure.Median)
	}
	if c.Figure.Median >= 1e6 { // from memory
		return format.Number(c.Figure.Median/1e6) + "M"
	}
	return format.Number(c.Figure.Median)
}

func markOf(c answer.Cell) string {
	switch {
	case c.Faulty:
		return faulty
	case c.Best:
		return best
	case c.Contended:
		return contended
	case c.Close:
		return tooClose
	}
	return " "
}

// legend of the marks that were seen.
func legend(seen []string) (said []string) {
	for _, m := range []struct{ mark, says string }{
		{best, "best"}, {tooClose, "too close to it to call"}, {faulty, "fault"}, {contended, "often denied only because a row was locked"},
	} {
		if slices.Contains(seen, m.mark) {
			said = append(said, m.mark+" "+m.says)
		}
	}
	return said
}

// audited is the audit of all runs in one line.
func audited(sum answer.Audit) string {
	line := fmt.Sprintf("audited: %s decisions, %s over, %s undue", format.Count(sum.Decisions), format.Count(sum.Over), format.Count(sum.Undue))
	if sum.Missing > 0 {
		line += fmt.Sprintf("; grants are missing in %s", format.Plural(int64(sum.Missing), "run"))
	}
	if sum.Off > 0 {
		line += fmt.Sprintf("; %s without an audit", format.Plural(int64(sum.Off), "run"))
	}
	return line
}

func faults(a answer.Answer) (lines []string) {
	for _, fault := range a.Faults {
		lines = append(lines, clip(faulty+" "+fault))
	}
	return lines
}
