package text

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/compare"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// block is one scenario of the suite. A row's verdict stands apart from its cells: it
// has what room they leave.
type block struct {
	title     string
	rows      [][]string
	standings []compare.Standing
	best      int
}

var blockHead = []string{"", "grants", "denials", "grant ms", "denial ms", "trips", "WAL"}

func newBlock(g result.Group) block {
	b := block{title: g.Scenario.Title + ": " + load(g.Scenario.Parameters), standings: compare.Rank(g)}
	b.best = compare.Best(b.standings)
	for i, s := range b.standings {
		name := short(s.Strategy)
		switch {
		case i == b.best:
			name += " *"
		case b.best >= 0 && compare.Level(s, b.standings[b.best]):
			name += " ~"
		}
		b.rows = append(b.rows, []string{
			name,
			Number(s.Figure(func(run result.Run) float64 { return run.GrantsPerSecond }).Median),
			Number(s.Figure(func(run result.Run) float64 { return run.DenialsPerSecond }).Median),
			millis(s.Row, func(run result.Run) (result.Latency, int64) { return run.GrantLatency, run.Allowed }),
			millis(s.Row, func(run result.Run) (result.Latency, int64) { return run.DenialLatency, run.Denied }),
			trips(s.Figure(result.Run.TripsPerDecision).Median),
			Number(s.Figure(result.Run.WALPerDecision).Median),
		})
	}
	return b
}

// lines of the block. repeated says that the head of the columns is known from above, folded that a row has
// one line: a verdict that is longer is cut.
func (b block) lines(wide []int, repeated, folded bool, o Options) []string {
	lines := []string{o.title(clip(b.title, Width))}
	if !repeated {
		lines = append(lines, layOut(blockHead, wide)+" verdict")
	}
	for i, row := range b.rows {
		s := b.standings[i]
		left := layOut(row, wide)
		room := Width - width(left) - 1
		right, below := verdict(s, room)
		if folded && below != "" {
			right, below = worstOf(s, room), ""
		}
		if i == b.best {
			left = o.good(left)
		}
		paint := func(s string) string { return s }
		if s.Faults.Any() {
			paint = o.bad
		}
		if right != "" {
			left += " " + paint(right)
		}
		lines = append(lines, left)
		for _, line := range wrap(below, Width-4, 0) {
			lines = append(lines, "    "+paint(line))
		}
	}
	return lines
}

// verdict of a row: as much of it as there is room for, the worst first, and what goes on
// a line below.
func verdict(s compare.Standing, room int) (right, below string) {
	parts := append([]string{s.Verdict()}, faultWords(s.Faults, true)...)
	if s.Faults.Over > 0 || s.Faults.NotDue > 0 {
		parts = faultWords(s.Faults, false) // those of the audit one by one
	}
	if s.OftenContended() {
		parts = slices.Insert(parts, 1, Share(s.Contended)+" contended")
	}
	whole := strings.Join(parts, ", ")
	for _, text := range []string{whole, strings.Replace(whole, " contended", " cont.", 1)} {
		if width(text) <= room {
			return text, ""
		}
	}
	n := len(parts) - 1
	for n > 0 && width(strings.Join(parts[:n], ", ")) > room {
		n--
	}
	return strings.Join(parts[:n], ", "), strings.Join(parts[n:], ", ")
}

// worstOf a row's faults: as many as there is room for. Without any it is the verdict.
func worstOf(s compare.Standing, room int) string {
	parts := faultWords(s.Faults, false)
	if s.OftenContended() {
		parts = append(parts, Share(s.Contended)+" cont.")
	}
	if len(parts) == 0 {
		parts = []string{s.Verdict()}
	}
	text := parts[0]
	for _, part := range parts[1:] {
		if width(text+", "+part) > room {
			break
		}
		text += ", " + part
	}
	return clip(text, room)
}

// millis is the median of two percentiles: 0.85/4.31.
func millis(row result.Row, of func(result.Run) (l result.Latency, n int64)) string {
	n := int64(0)
	percentile := func(which func(result.Latency) float64) string {
		return Millis(row.Figure(func(run result.Run) float64 {
			l, _ := of(run)
			return l.Known(which(l))
		}).Median)
	}
	for _, run := range row.Runs {
		_, some := of(run)
		n += some
	}
	p50 := percentile(func(l result.Latency) float64 { return l.P50 })
	switch {
	case n == 0:
		return None
	case p50 == Unknown:
		return Unknown
	}
	return p50 + "/" + percentile(func(l result.Latency) float64 { return l.P99 })
}

// trips per decision, as fine as matters: 2, 1.05, 0.04, <.001.
func trips(f float64) string {
	switch {
	case math.IsNaN(f):
		return Unknown
	case f == 0 || f >= 0.01:
		return strings.TrimRight(strings.TrimRight(strconv.FormatFloat(f, 'f', 2, 64), "0"), ".")
	case f >= 0.001:
		return strconv.FormatFloat(f, 'f', 3, 64)
	}
	return "<.001"
}
