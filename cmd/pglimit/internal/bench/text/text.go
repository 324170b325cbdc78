// Package text prints what was measured, and what package compare makes of it, for people.
//
//	suite.go    the default run: a block per scenario, the stages, the recommendation
//	block.go    one of those blocks
//	head.go     what was run on what, in a few lines
//	gains.go    what the stages make of each scenario
//	details.go  all figures, a table per scenario; rows.go, stages.go and notes.go are its parts
//	writeup.go  the write-up's own criterion
//	capacity.go the highest rates, and the sweep over callers
//	compare.go  two reports beside each other
//	advice.go   the recommendation: for a kind of load in advice_loads.go, what spoils the
//	            others in advice_others.go, how sure it is in advice_certainty.go
//	faults.go   what speaks against a strategy
//	format.go   figures
//	columns.go  columns and wrapping, within [Width]
//
// A figure that is not known is printed as "?", and one that there cannot be as "-".
// Where a scenario was run in several rounds, figures are medians.
package text

import (
	"slices"
	"strings"

	pretty "github.com/jedib0t/go-pretty/v6/text"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/compare"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// Width that no line exceeds, except in [Details], whose tables are as wide as they have
// strategies.
const Width = 80

// Options of printing. The zero value is plain text.
type Options struct {
	// Colour writes escape codes for bold, green and red. The text is otherwise the same.
	Colour bool
}

func (o Options) paint(s string, colours ...pretty.Color) string {
	if !o.Colour || s == "" {
		return s
	}
	// Sprint would ask the environment, which is the caller's business.
	return pretty.Colors(colours).EscapeSeq() + s + pretty.Reset.EscapeSeq()
}

func (o Options) title(s string) string { return o.paint(s, pretty.Bold) }
func (o Options) good(s string) string  { return o.paint(s, pretty.FgGreen) }
func (o Options) bad(s string) string   { return o.paint(s, pretty.FgRed) }

// text ends each line and puts an empty one between paragraphs.
func text(paragraphs ...[]string) string {
	paragraphs = slices.DeleteFunc(paragraphs, func(lines []string) bool { return len(lines) == 0 })
	var out strings.Builder
	for i, lines := range paragraphs {
		if i > 0 {
			out.WriteString("\n")
		}
		for _, line := range lines {
			out.WriteString(line + "\n")
		}
	}
	return out.String()
}

// strategies of the report, in the order in which they first ran.
func strategies(groups []result.Group) (names []string) {
	for _, g := range groups {
		for _, row := range g.Rows {
			if !slices.Contains(names, row.Strategy) {
				names = append(names, row.Strategy)
			}
		}
	}
	return names
}

// short is the name of a strategy where columns are narrow.
func short(strategy string) string {
	if as, found := strings.CutPrefix(strategy, compare.PublishedPrefix); found {
		return "pub. " + as
	}
	return strategy
}
