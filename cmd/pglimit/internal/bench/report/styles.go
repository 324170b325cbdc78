package report

import (
	"slices"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/chart"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// known strategies are drawn the same in every picture of every report.
var knownStrategies = []string{
	"token_bucket", "upsert", "for_update_nowait", "exclusion_range",
	"published_for_update_nowait", "published_exclusion", "published_upsert",
	"sliding_window", "sliding_log", "warm_up",
}

// stylesOf the strategies of a group. Those that are not known take what is left.
func stylesOf(g result.Group) map[string]int {
	var names []string
	for _, row := range g.Rows {
		names = append(names, row.Strategy)
	}
	return styles(names)
}

func styles(names []string) map[string]int {
	of := map[string]int{}
	next := len(knownStrategies)
	for _, name := range names {
		if _, done := of[name]; done {
			continue
		}
		if i := slices.Index(knownStrategies, name); i >= 0 {
			of[name] = i + 1
			continue
		}
		of[name] = next%chart.Styles + 1
		next++
	}
	return of
}
