// Package report writes what a bench has measured as one HTML page, which needs no script and nothing from elsewhere.
// What it recommends, and which bar is the best, comes from package answer.
//
//	report.go    the page
//	pictures.go  its pictures
//	tables.go    all figures, statements, loads, and what was run on what
package report

import (
	"bytes"
	"cmp"
	_ "embed"
	"html/template"
	"io"
	"slices"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/answer"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/chart"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/format"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

var (
	//go:embed page.html
	pageText string
	//go:embed page.css
	pageCSS string

	pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{"count": format.Count}).Parse(pageText))
)

// page is what the template shows. It leaves out what is empty.
type page struct {
	answer.Answer
	Report        result.Report
	CSS           template.CSS
	Shown, Folded []*figure

	Figures, Statements, Loads, Facts table
}

// Write writes the page, in UTF-8. It is under 400 kB for the suite, and for ten minutes of the write-up's experiment with
// seven strategies.
func Write(w io.Writer, r result.Report) error {
	d := newDrawing(r)
	shown, folded := d.pictures()
	var out bytes.Buffer // a page is whole, or is not written
	err := pageTemplate.Execute(&out, page{
		Answer: d.answer, Report: r, CSS: template.CSS(pageCSS), Shown: shown, Folded: folded, //nolint:gosec // the text is embedded
		Figures: figures(d.groups), Statements: statements(d.groups), Loads: loads(r.Scenarios), Facts: facts(r),
	})
	if err == nil {
		_, err = w.Write(out.Bytes())
	}
	return err
}

// drawing is what all pictures are made from.
type drawing struct {
	report result.Report
	answer answer.Answer
	groups []result.Group
	loads  []answer.Load // of the bars
	names  []string      // of the strategies: the one to take, the next one, then the others as they ran
}

func newDrawing(r result.Report) drawing {
	d := drawing{report: r, answer: answer.Of(r), groups: r.Groups()}
	d.loads, d.names = d.answer.Loads, slices.Clone(d.answer.Strategies)
	if len(r.Capacity) > 0 {
		found := answer.Load{Scenario: result.Scenario{Title: "the highest rate with p99 under " + format.Micros(r.Capacity[0].P99Bound)}, Unit: "arrivals/s"}
		for _, c := range r.Capacity {
			d.names = append(d.names, c.Strategy)
			figure := result.Figure{Median: c.Rate, Low: c.Rate, High: c.Rate, Runs: 1}
			found.Cells = append(found.Cells, answer.Cell{Strategy: c.Strategy, Ran: true, Figure: figure, Best: c.Strategy == d.answer.Take})
		}
		d.loads = append(d.loads, found)
	}
	first := []string{d.answer.Next, d.answer.Take} // the others have the index -1
	slices.SortStableFunc(d.names, func(a, b string) int {
		return cmp.Compare(slices.Index(first, b), slices.Index(first, a))
	})
	return d
}

// class of a strategy, which has one colour in the whole page.
func (d drawing) class(name string) string { return chart.Class(slices.Index(d.names, name)) }
