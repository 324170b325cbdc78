package report

import (
	"strings"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/chart"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// statement is what the server says of one statement of a strategy's typical run.
type statement struct{ Strategy, Query, Calls, Mean, Total string }

// statements that took most of the server's time, a few of each strategy. None: the server
// has no pg_stat_statements.
func statements(g result.Group) []statement {
	const perStrategy, longest = 3, 300
	var all []statement
	for _, row := range g.Rows {
		of := row.Typical(g.Scenario).Statements
		for _, s := range of[:min(len(of), perStrategy)] {
			query := []rune(strings.Join(strings.Fields(s.Query), " "))
			if len(query) > longest {
				query = append(query[:longest-1], '…')
			}
			all = append(all, statement{
				row.Strategy, string(query), count(s.Calls), chart.Micros.Text(s.MeanUS), chart.Micros.Text(s.TotalMS * 1000),
			})
		}
	}
	return all
}
