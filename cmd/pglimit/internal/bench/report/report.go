// Package report writes what a bench has measured as one HTML page, which needs no script and nothing from elsewhere.
// What it recommends, and which bar is the best, comes from package answer.
//
//	report.go    the page and its tables
//	pictures.go  its pictures
package report

import (
	"bytes"
	"cmp"
	"embed"
	"html/template"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/answer"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/chart"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/format"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/metric"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

//go:embed page.html page.css
var files embed.FS

var templates = template.Must(template.New("").Funcs(template.FuncMap{"count": format.Count}).ParseFS(files, "*"))

// Write writes the page, in UTF-8: under 400 kB for the suite, and for the write-up's experiment with seven strategies.
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
	names  []string // of the strategies: the one to take, the next one, then the others as they ran
}

func newDocument(r result.Report) document {
	d := document{Answer: answer.Of(r), Report: r, groups: r.Groups()}
	d.names = slices.Clone(d.Strategies)
	first := []string{d.Next, d.Take} // the others have the index -1
	slices.SortStableFunc(d.names, func(a, b string) int {
		return cmp.Compare(slices.Index(first, b), slices.Index(first, a))
	})
	return d
}

// class of a strategy, which has one colour in the whole page.
func (d document) class(name string) string { return chart.Class(slices.Index(d.names, name)) }

// table of texts. The first column names the row.
type table struct {
	Head []string
	Rows [][]string
}

// Figures of each load and strategy: medians of the rounds, or their sum.
func (d document) Figures() table {
	shown := append(slices.Clone(metric.Main), metric.Named("errors", "deadlocks")...)
	t := table{Head: []string{"load", "strategy"}}
	for _, m := range shown {
		t.Head = append(t.Head, m.Name)
	}
	t.Head = append(t.Head, "audit")
	for _, g := range d.groups {
		for _, row := range g.Rows {
			cells := []string{g.Scenario.Title, row.Strategy}
			for _, m := range shown {
				cells = append(cells, m.Cell(row))
			}
			t.Rows = append(t.Rows, append(cells, row.Verdict()))
		}
	}
	return t
}

// What was run, in words. A load with stages is named beside the same one without.
func (d document) What() table {
	t := table{Head: []string{"load", "what it was"}}
	for _, s := range d.Report.Scenarios {
		if slices.ContainsFunc(d.Report.Scenarios, func(plain result.Scenario) bool { return plain.Name == s.StagesOf }) {
			continue
		}
		staged := slices.ContainsFunc(d.Report.Scenarios, func(other result.Scenario) bool { return other.StagesOf == s.Name })
		t.Rows = append(t.Rows, []string{s.Title, s.Words() + on(staged, "; then with the default stages of a Limiter")})
	}
	return t
}

// on is the text, if it applies.
func on(applies bool, text string) string {
	if applies {
		return text
	}
	return ""
}

// Where it was run.
func (d document) Where() table {
	r := d.Report
	var settings []string
	for _, name := range slices.Sorted(maps.Keys(r.Server.Settings)) {
		settings = append(settings, name+" = "+r.Server.Settings[name])
	}
	server := on(!strings.HasPrefix(r.Server.Source, "PostgreSQL "), "PostgreSQL "+r.Server.Version+", ") + r.Server.Source
	return table{Rows: [][]string{
		{"Command", r.Command}, {"Server", server}, {"Settings", strings.Join(settings, ", ")},
		{"Client", strings.Join([]string{r.Client.OS, format.Plural(int64(r.Client.CPUs), "CPU"), "pglimit " + r.Client.Version, r.Client.Go}, ", ")},
	}}
}
