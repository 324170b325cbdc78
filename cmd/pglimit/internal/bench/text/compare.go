package text

import (
	"fmt"
	"math"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/compare"
)

// Compare prints old and new beside each other: medians, how far the rounds lie apart,
// and which differences are noise.
func Compare(c compare.Comparison) string {
	paragraphs := [][]string{tally(c), differs(c)}
	single := false
	for _, pair := range c.Pairs {
		title := pair.Title
		if title == "" {
			title = pair.Scenario
		}
		rows := [][]string{{"", "old", "", "new", "", "new/old", ""}}
		for _, f := range pair.Figures {
			single = single || f.Old.Runs == 1 || f.New.Runs == 1
			rows = append(rows, []string{
				"  " + f.Name, written(f, f.Old), spread(f.Old), written(f, f.New), spread(f.New), ratio(f), judged(f),
			})
		}
		lines := []string{clip(pair.Strategy+", "+title, Width)}
		wide := widths(rows...)
		for _, row := range rows {
			lines = append(lines, clip(layOut(row, wide), Width))
		}
		paragraphs = append(paragraphs, lines)
	}
	return text(append(paragraphs, compareNotes(c, single))...)
}

// tally says what became of all figures, which are more than a reader looks at.
func tally(c compare.Comparison) []string {
	n := map[string]int64{}
	for _, pair := range c.Pairs {
		for _, f := range pair.Figures {
			n[judged(f)]++
		}
	}
	return []string{fmt.Sprintf("%s: %s better, %s worse, %s noise", Plural(n[better]+n[worse]+n[noise]+n[None], "figure"),
		Count(n[better]), Count(n[worse]), Count(n[noise]))}
}

const (
	better = "better"
	worse  = "worse"
	noise  = "noise"
)

func differs(c compare.Comparison) (lines []string) {
	if len(c.Differs) == 0 {
		return nil
	}
	lines = []string{"Not the same in both, so figures may differ because of it:"}
	for _, what := range c.Differs {
		for _, line := range wrap(what, Width-2, 2) {
			lines = append(lines, "  "+line)
		}
	}
	return lines
}

func written(f compare.Figure, s compare.Summary) string {
	if s.Runs == 0 {
		return Unknown
	}
	switch f.Unit {
	case compare.Latency:
		return Micros(s.Median)
	case compare.Trips:
		return Small(s.Median)
	}
	return Number(s.Median)
}

func spread(s compare.Summary) string {
	if s.Runs < 2 {
		return ""
	}
	return Spread(s.Figure().Spread())
}

func ratio(f compare.Figure) string {
	if f.Ratio == 0 && f.New.Median != 0 || f.Old.Runs == 0 || f.New.Runs == 0 {
		return Unknown
	}
	return fmt.Sprintf("%.2f", f.Ratio)
}

// judged says in a word what became of a figure.
func judged(f compare.Figure) string {
	switch {
	case f.Old.Runs == 0 || f.New.Runs == 0:
		return None
	case f.Noise:
		return noise
	case f.New.Median > f.Old.Median == f.MoreBetter:
		return better
	}
	return worse
}

func compareNotes(c compare.Comparison, single bool) (lines []string) {
	lines = wrap("noise: the ranges of the rounds overlap. ±: half the range, of the median.", Width, 0)
	if single {
		percent := math.Round(100 * compare.SingleRun)
		lines = wrap(fmt.Sprintf("noise: a difference below %.0f %% cannot be told from noise with one run each (--repeat 3), nor one where the ranges of the rounds overlap.", percent), Width, 0)
	}
	for _, name := range c.OnlyOld {
		lines = append(lines, clip("Only in the old report: "+name+".", Width))
	}
	for _, name := range c.OnlyNew {
		lines = append(lines, clip("Only in the new report: "+name+".", Width))
	}
	return lines
}
