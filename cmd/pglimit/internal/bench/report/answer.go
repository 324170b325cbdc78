package report

import (
	"fmt"
	"html/template"
	"math"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/chart"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/compare"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// answer is the one picture of which strategy, and by how much. It is empty where nothing was
// measured.
func answer(r result.Report) (template.HTML, error) {
	b := answerBars(r)
	if b.Empty() {
		return "", nil
	}
	b.ID = "answer"
	return b.HTML()
}

func answerBars(r result.Report) chart.Bars {
	e := compare.EvidenceOf(r)
	var names []string
	for _, c := range r.Capacity {
		names = append(names, c.Strategy)
	}
	names = append(names, e.Names...)
	style := styles(names)
	b := chart.Bars{Unit: chart.Percent}
	add := func(name string, f result.Figure) {
		bar := chart.Bar{Name: name, Style: style[name], Value: f.Median, Note: math.NaN()}
		if f.Runs > 1 {
			bar.Low, bar.High = f.Low, f.High
		}
		b.Bars = append(b.Bars, bar)
	}
	switch {
	case len(r.Capacity) > 0:
		b.Title, b.Label, b.Unit = "The highest rate of each strategy", "requests per second", chart.Number
		b.Caption = "At which p99 stayed under " + chart.Micros.Text(r.Capacity[0].P99Bound) + "."
		for _, c := range r.Capacity {
			add(c.Strategy, result.Figure{Median: c.Rate})
		}
	case len(e.Base) == 1 && e.Base[0].Scenario.AtMost > 0:
		b.Title, b.Label = "Tokens granted, of what a perfect limiter would have granted", "percent of the tokens"
		b.Caption = "100 % is best: less was denied or failed without need, more is over the limit."
		for _, name := range e.Names {
			if s, ran := e.Base[0].Of(name); ran {
				f := s.Figure(func(run result.Run) float64 { return 100 * ofPossible(e.Base[0].Scenario.AtMost)(run) })
				add(name, f)
			}
		}
	case len(e.Base) > 0:
		b.Title, b.Label = "How fast each strategy was, beside the fastest", "percent of the fastest"
		b.Caption = "100 % is the best strategy under the same load" + byLatency(e.Base) + "."
		if len(e.Base) > 1 {
			b.Caption += fmt.Sprintf(" Bars are geometric means of %d loads; the thin line goes from a strategy's worst load to its best.", len(e.Base))
		}
		for _, name := range e.Names {
			add(name, besideTheFastest(e.Base, name))
		}
	}
	return b
}

// byLatency says what is fast in an open loop.
func byLatency(loads []compare.Load) string {
	for _, l := range loads {
		if compare.Open(l.Scenario) {
			return ", in an open loop the one with the lowest p99"
		}
	}
	return ""
}

// besideTheFastest is the pace of a strategy over all loads, in percent of the best one's. As in the
// recommendation, a strategy that often denies without looking is not the best.
func besideTheFastest(loads []compare.Load, name string) (f result.Figure) {
	logs := 0.0
	f = result.Figure{Median: math.NaN(), Low: math.Inf(1), High: math.Inf(-1)}
	for _, l := range loads {
		s, ran := l.Of(name)
		best := compare.Best(l.Standings)
		if !ran || best < 0 || !s.Known() || !(l.Standings[best].Pace.Median > 0) {
			continue
		}
		share := 100 * s.Share(l.Standings[best])
		f.Low, f.High = math.Min(f.Low, share), math.Max(f.High, share)
		logs += math.Log(math.Max(share, 0.01)) // a geometric mean knows no 0
		f.Runs++
	}
	if f.Runs > 0 {
		f.Median = math.Exp(logs / float64(f.Runs))
	}
	return f
}
