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
	"embed"
	"html/template"
	"io"
	"slices"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/answer"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/chart"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/format"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

//go:embed page.html page.css
var files embed.FS

var templates = template.Must(template.New("").Funcs(template.FuncMap{"count": format.Count}).ParseFS(files, "*"))

// Write writes the page, in UTF-8. It is under 400 kB for the suite, and for ten minutes of the write-up's experiment with
// seven strategies.
func Write(w io.Writer, r result.Report) error {
	var out bytes.Buffer // a page is whole, or is not written
	if err := templates.ExecuteTemplate(&out, "page.html", newDocument(r)); err != nil {
		return err
	}
	_, err := w.Write(out.Bytes())
	return err
}

// document is what the template shows, by its fields and methods. It leaves out what is empty.
type document struct {
	answer.Answer
	Report result.Report

	groups []result.Group
	bars   []answer.Load
	names  []string // of the strategies: the one to take, the next one, then the others as they ran
}

func newDocument(r result.Report) document {
	d := document{Answer: answer.Of(r), Report: r, groups: r.Groups()}
	d.bars, d.names = d.Loads, slices.Clone(d.Strategies)
	if len(r.Capacity) > 0 {
		found := answer.Load{Scenario: result.Scenario{Title: "the highest rate with p99 under " + format.Micros(r.Capacity[0].P99Bound)}, Unit: "arrivals/s"}
		for _, c := range r.Capacity {
			d.names = append(d.names, c.Strategy)
			figure := result.Figure{Median: c.Rate, Low: c.Rate, High: c.Rate, Runs: 1}
			cell := answer.Cell{Strategy: c.Strategy, Ran: true, Figure: figure, Best: c.Strategy == d.Take}
			for _, point := range slices.Concat(c.Sweep, c.Probes) {
				if point.OverTokens > 0 && !cell.Faulty {
					cell.Faulty, d.Faults = true, append(d.Faults, c.Strategy+": over by "+format.Plural(point.OverTokens, "token"))
				}
			}
			found.Cells = append(found.Cells, cell)
		}
		d.bars = append(d.bars, found)
	}
	first := []string{d.Next, d.Take} // the others have the index -1
	slices.SortStableFunc(d.names, func(a, b string) int {
		return cmp.Compare(slices.Index(first, b), slices.Index(first, a))
	})
	return d
}

// class of a strategy, which has one colour in the whole page.
func (d document) class(name string) string { return chart.Class(slices.Index(d.names, name)) }
