package report

import (
	"cmp"
	"fmt"
	"html/template"
	"maps"
	"math"
	"slices"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/answer"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/chart"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/format"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/scenario"
)

// figure is a picture of several panels.
type figure struct {
	Title, Caption string
	Keys           []chart.Line // one of each series, for the legend
	Panels         []panel
}

type panel struct {
	Title, Unit string
	SVG         template.HTML
	Numbers     table
}

// Pictures that have anything to show.
func (d document) Pictures() []*figure {
	all := []*figure{d.which(), d.experiment(), d.capacity(), d.latency()}
	return slices.DeleteFunc(all, func(f *figure) bool { return len(f.Panels) == 0 })
}

// The axes of the figures.
var (
	numbers = chart.Axis{Text: format.Number}
	micros  = chart.Axis{Text: format.Micros, Scale: chart.Log}
)

// which shows which strategy, and by how much.
func (d document) which() *figure {
	f := &figure{Title: "Which, and by how much"}
	seen := map[string]bool{}
	for _, l := range d.Loads {
		write := format.Number
		if l.Unit == answer.Latency {
			write, seen[answer.Latency] = format.Micros, true
		}
		bars, figures := chart.Bars{Title: l.Scenario.Title}, table{Head: []string{"strategy", "median", "lowest", "highest"}}
		for _, name := range d.names {
			if c := l.Cell(name); c.Ran {
				bar := d.bar(l, c, write)
				seen[bar.Mark], seen[rounds] = true, seen[rounds] || c.Figure.Runs > 1
				bars.Bars = append(bars.Bars, bar)
				row := []string{name, write(c.Figure.Median), write(c.Figure.Low), write(c.Figure.High)}
				figures.Rows = append(figures.Rows, row)
			}
		}
		f.Panels = append(f.Panels, panel{l.Scenario.Title, l.Unit, bars.SVG(), figures})
	}
	f.Caption = "Percent of the best in each load." +
		on(seen[rounds], " Figures are medians; the thin line goes from the lowest round to the highest.") +
		on(seen[answer.Latency], " Of a p99, less is better.") + on(seen[tied], " ≈\u00a0best: too close to call.") +
		on(seen[contended], " Contended: denied only because another caller held the row.") +
		on(seen[faulty], " A fault, listed below, rules a strategy out.")
	return f
}

// Marks at a bar in place of the percentage; and that there are several rounds.
const best, tied, faulty, contended, rounds = "best", "≈ best", "fault", "contended", "rounds"

// bar of a strategy beside the best of the load.
func (d document) bar(l answer.Load, c answer.Cell, write func(float64) string) chart.Bar {
	b := chart.Bar{Name: c.Strategy, Class: d.class(c.Strategy), Value: write(c.Figure.Median)}
	whole := l.Best()
	if !whole.Best {
		whole = l.Cells[0]
	}
	share := func(figure float64) float64 {
		if l.Unit == answer.Latency {
			return whole.Figure.Median / figure // less is better
		}
		return figure / whole.Figure.Median
	}
	b.Share, b.Low, b.High = share(c.Figure.Median), share(c.Figure.Low), share(c.Figure.High)
	b.Mark = format.Percent(b.Share)
	switch {
	case c.Faulty:
		b.Class, b.Mark = "fault", faulty
	case d.Noisy:
	case c.Best:
		b.Strong, b.Mark = true, best
	case c.Close:
		b.Strong, b.Mark = true, tied
	case c.Contended:
		b.Mark = contended
	}
	return b
}

// A line that is worth a picture has the fewest different figures. One over time has at most mostPoints, joined ones.
const fewest, mostPoints = 8, 40

// add a panel, unless there is too little to see. fewest is the least number of different figures of a line.
func (f *figure) add(l chart.Lines, unit string, fewest int) {
	l.Y.Label = unit
	l.Lines = slices.DeleteFunc(l.Lines, func(line chart.Line) bool {
		different := map[float64]bool{}
		for _, p := range line.Points {
			different[p.Y] = true
		}
		return len(different) < fewest
	})
	if l.Empty() {
		return
	}
	figures, rows := table{Head: []string{l.X.Label}}, map[float64][]string{}
	for i, line := range l.Lines {
		if !slices.ContainsFunc(f.Keys, func(key chart.Line) bool { return key.Name == line.Name }) {
			f.Keys = append(f.Keys, line)
		}
		figures.Head = append(figures.Head, line.Name)
		for _, p := range line.Points {
			if rows[p.X] == nil {
				rows[p.X] = make([]string, len(l.Lines)+1)
				rows[p.X][0] = l.X.Text(p.X)
			}
			rows[p.X][i+1] = l.Y.Text(p.Y)
		}
	}
	for _, x := range slices.Sorted(maps.Keys(rows)) {
		figures.Rows = append(figures.Rows, rows[x])
	}
	slices.SortFunc(f.Keys, func(a, b chart.Line) int { return cmp.Compare(a.Class, b.Class) })
	f.Panels = append(f.Panels, panel{l.Title, unit, l.SVG(), figures})
}

// lines of the typical run of each of the named strategies.
func (d document) lines(g result.Group, names []string, l chart.Lines, of func(result.Run) []chart.Point) chart.Lines {
	l.Title = cmp.Or(l.Title, g.Scenario.Title)
	for _, name := range names {
		if row, ran := g.Row(name); ran {
			l.Lines = append(l.Lines, chart.Line{Name: name, Class: d.class(name), Points: of(row.Typical(g.Scenario))})
		}
	}
	return l
}

// latency curves of the two best. Of all, if none can be recommended.
func (d document) latency() *figure {
	f := &figure{Title: "How long an answer takes", Caption: "At p99, one answer of a hundred took longer."}
	percentiles := chart.Axis{Label: "percentile", Scale: chart.Nines, Text: percentile}
	two := slices.DeleteFunc(slices.Clone(d.names), func(name string) bool {
		return d.Take != "" && name != d.Take && name != d.Next
	})
	for _, g := range d.groups {
		_, name := latency(g.Scenario, g.Rows[0].Runs[0])
		f.add(d.lines(g, two, chart.Lines{X: percentiles, Y: micros}, func(run result.Run) (points []chart.Point) {
			all, _ := latency(g.Scenario, run)
			for _, p := range all.Curve {
				if p.Percent >= 50 {
					points = append(points, chart.Point{X: p.Percent, Y: p.US})
				}
			}
			return points
		}), name, fewest)
	}
	return f
}

func percentile(p float64) string { return fmt.Sprintf("p%g", p) }

// latency of what strategies are compared by, and whose its curve is: of all decisions together none is kept.
func latency(s result.Scenario, run result.Run) (l result.Latency, name string) {
	switch {
	case s.AtMost == 0 && s.CompareBy == scenario.ByGrants:
		return run.GrantLatency, "of a grant"
	case s.CompareBy == scenario.ByDenials:
		return run.DenialLatency, "of a denial"
	}
	l, name = run.Latency, "of a grant"
	if l.Curve = run.GrantLatency.Curve; run.Denied > run.Allowed {
		l.Curve, name = run.DenialLatency.Curve, "of a denial"
	}
	return l, name
}

// valued gets a point, and how many requests were granted since the start.
type valued func(p result.Point, granted float64) float64

// overTime are lines over the time of a run.
func (d document) overTime(g result.Group, title string, y chart.Axis, of valued) chart.Lines {
	l := chart.Lines{Title: title, X: chart.Axis{Label: "time", Scale: chart.Time, Text: format.Seconds}, Y: y}
	begin := 0.0
	for _, phase := range g.Scenario.Phases {
		if len(g.Scenario.Phases) > 1 {
			l.Begin = append(l.Begin, chart.Mark{At: begin, Label: format.Number(phase.Rate) + "/s"})
		}
		begin += phase.Length.Seconds()
	}
	return d.lines(g, d.names, l, func(run result.Run) (points []chart.Point) {
		granted := 0.0
		for several := range slices.Chunk(run.Series, 1+len(run.Series)/mostPoints) {
			sum := several[0]
			for _, p := range several[1:] {
				sum.Seconds, sum.Granted, sum.Slowest = p.Seconds, sum.Granted+p.Granted, max(sum.Slowest, p.Slowest)
			}
			granted += float64(sum.Granted)
			at := math.Round(sum.Seconds*10) / 10 // the same for all strategies
			points = append(points, chart.Point{X: at, Y: of(sum, granted)})
		}
		return points
	})
}

// experiment of the write-up, if it was run.
func (d document) experiment() *figure {
	f := &figure{Title: "Minute by minute"}
	f.Caption = "Perfect is a straight line to just below the mark. Where lines coincide, the first hides the others."
	for _, g := range d.groups {
		if most := g.Scenario.AtMost; most > 0 {
			soFar := func(_ result.Point, granted float64) float64 { return granted }
			l := d.overTime(g, "Granted so far", numbers, soFar)
			l.Limit = chart.Mark{At: float64(most), Label: fmt.Sprintf("at most %d", most)}
			f.add(l, "requests", fewest)
			f.add(d.overTime(g, "Slowest answer", micros, slowest), "of each interval", fewest)
		}
	}
	return f
}

func slowest(p result.Point, _ float64) float64 { return p.Slowest }

// capacity that was found, if it was looked for.
func (d document) capacity() *figure {
	f := &figure{Title: "What it costs", Caption: "Arrivals do not wait for one another's answers."}
	arrivals := numbers
	arrivals.Label = "arrivals/s"
	probes := chart.Lines{Title: "p99 by arrivals per second", X: arrivals, Y: micros}
	for _, c := range d.Report.Capacity {
		line := chart.Line{Name: c.Strategy, Class: d.class(c.Strategy)}
		for _, p := range c.Probes {
			if p.Rate > 0 {
				line.Points = append(line.Points, chart.Point{X: p.Rate, Y: p.P99})
			}
		}
		slices.SortFunc(line.Points, func(a, b chart.Point) int { return cmp.Compare(a.X, b.X) })
		probes.Lines = append(probes.Lines, line)
		probes.Limit = chart.Mark{At: c.P99Bound, Label: "the bound, " + format.Micros(c.P99Bound)}
	}
	f.add(probes, "of a decision", 2)
	return f
}
