package text

import (
	"fmt"
	"math"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// WriteUp judges the scenarios that have a bound by the write-up's own criterion: how much
// was granted, how much it could have been, and at which price. It is empty if none has.
func WriteUp(r result.Report, o Options) string {
	var paragraphs [][]string
	for _, g := range r.Groups() {
		if g.Scenario.AtMost > 0 {
			paragraphs = append(paragraphs, writeUp(g, o)...)
		}
	}
	return text(paragraphs...)
}

var writeUpHead = []string{"", "granted", "at most", "possible", "denied", "failed", "deadlocks", "worst", "p99"}

func writeUp(g result.Group, o Options) [][]string {
	rows := [][]string{writeUpHead}
	var kept []string
	for _, row := range g.Rows {
		for _, run := range row.Runs {
			name := short(row.Strategy)
			if len(row.Runs) > 1 {
				name = fmt.Sprintf("%s %d", name, run.Round)
			}
			possible := possible(g.Scenario.Parameters, run)
			rows = append(rows, []string{
				name, Count(run.Granted), Count(g.Scenario.AtMost), whole(possible),
				Count(run.Denied), Count(run.Failed()), whole(result.Known(run.Deadlocks)),
				Micros(worst(run)), Micros(p99(run)),
			})
			text, fine := keptText(g.Scenario, run, possible)
			for _, line := range wrap(name+" "+text, Width, 2) {
				if !fine {
					line = o.bad(line)
				}
				kept = append(kept, line)
			}
		}
	}
	explained := "possible: what a perfect limiter grants for the same arrivals; worst: the slowest answer."
	lines := append([]string{o.title(clip(g.Scenario.Title+": "+load(g.Scenario.Parameters), Width))}, narrow(rows)...)
	return [][]string{append(lines, wrap(explained, Width, 0)...), kept}
}

// narrow is a table within the width: if need be names have a line of their own.
func narrow(rows [][]string) (lines []string) {
	wide := widths(rows...)
	total := len(wide) - 1
	for _, w := range wide {
		total += w
	}
	if total <= Width {
		for _, row := range rows {
			lines = append(lines, layOut(row, wide))
		}
		return lines
	}
	wide[0] = 4
	for _, row := range rows {
		if row[0] != "" {
			lines = append(lines, row[0])
		}
		cells := append([]string{""}, row[1:]...)
		lines = append(lines, clip(layOut(cells, wide), Width))
	}
	return lines
}

// possible is how many tokens a limiter without a fault could have granted: for the same
// arrivals, if that is known, or else what all keys' limits allow in the time that the run
// took, or what was asked for, if that is less.
func possible(p result.Parameters, run result.Run) float64 {
	if run.Possible > 0 {
		return float64(run.Possible)
	}
	limit, err := rate.ParseLimit(run.Limit)
	if err != nil {
		return math.NaN()
	}
	perKey := float64(limit.Burst) + math.Floor(run.Seconds*float64(limit.Tokens)/limit.Period.Seconds())
	asked := float64(run.Decisions+run.Failed()) * float64(max(1, run.Cost))
	if len(p.Costs) > 0 {
		return perKey * float64(p.Keys) // what each asked for is not known here
	}
	return min(perKey*float64(p.Keys), asked)
}

// worst answer of all, granted or denied, and of what was given up while it waited.
func worst(run result.Run) float64 {
	return atLeastOne(max(run.Latency.Max, run.GrantLatency.Max, run.DenialLatency.Max), run)
}

func p99(run result.Run) float64 { return atLeastOne(run.Latency.P99, run) }

func atLeastOne(us float64, run result.Run) float64 {
	if run.Latency.Count+run.GrantLatency.Count+run.DenialLatency.Count == 0 {
		return math.NaN()
	}
	return us
}

// notablyLess than what was possible is pointed out.
const notablyLess = 0.95

// keptText says in words whether the bound was kept, and whether that was at the price of
// those who should have been granted.
func keptText(s result.Scenario, run result.Run, possible float64) (text string, fine bool) {
	if tooMany := run.Granted - s.AtMost; tooMany > 0 {
		return fmt.Sprintf("did not keep to it: %s granted, %s more than the %s allowed", Count(run.Granted), Count(tooMany), Count(s.AtMost)), false
	}
	text, fine = fmt.Sprintf("kept to it: %s granted of at most %s", Count(run.Granted), Count(s.AtMost)), true
	if most := min(possible, float64(s.AtMost)); float64(run.Granted) < notablyLess*most {
		text += fmt.Sprintf(", but only %s of what was possible", Share(float64(run.Granted)/most))
		fine = false
	}
	if failed := run.Failed(); failed > 0 {
		text += fmt.Sprintf("; %s of the requests failed", Share(run.FailedShare()))
		fine = false
	}
	if n := run.Deadlocks; n != nil && *n > 0 {
		text += "; " + Plural(*n, "deadlock")
		fine = false
	}
	return text, fine
}
