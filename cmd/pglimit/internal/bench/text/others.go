package text

import (
	"cmp"
	"fmt"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/compare"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/format"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/metric"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// Compare prints two reports beside each other.
func Compare(c compare.Comparison) string {
	var rows [][]string
	tally := map[string]int64{}
	for _, pair := range c.Pairs {
		rows = append(rows, []string{pair.Strategy + ", " + pair.Title})
		for _, f := range pair.Figures {
			tally[f.Verdict]++
			rows = append(rows, []string{"  " + f.Name, written(f.Metric, f.Old), written(f.Metric, f.New), format.Number(f.Ratio), cmp.Or(f.Verdict, "-")})
		}
	}
	said := fmt.Sprintf("%s better, %s worse, %s noise: the rounds overlap, or single runs differ by less than 15 %%",
		format.Plural(tally[compare.Better], "figure"), format.Count(tally[compare.Worse]), format.Count(tally[compare.Noise]))
	var differs []string
	for i, what := range c.Differs {
		if i == 0 {
			differs = []string{"Not the same in both; figures may differ because of it:"}
		}
		differs = append(differs, wrap("  "+what, 2)...)
	}
	return paragraphs(wrap(said, 0), differs, grid([]string{"", "old", "new", "new/old", ""}, rows))
}

func written(m metric.Metric, f result.Figure) string {
	if f.Runs == 0 {
		return format.Unknown
	}
	return m.Median(f)
}
