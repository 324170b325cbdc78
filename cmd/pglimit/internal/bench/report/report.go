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
	"fmt"
	"html/template"
	"io"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/answer"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/chart"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/format"
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
	bars   []answer.Load
	names  []string // of the strategies: the one to take, the next one, then the others as they ran
}

func newDocument(r result.Report) document {
	d := document{Answer: answer.Of(r), Report: r, groups: r.Groups()}
	d.bars, d.names = d.Loads, slices.Clone(d.Strategies)
	if len(r.Capacity) > 0 {
		title := "the highest rate with p99 under " + format.Micros(r.Capacity[0].P99Bound)
		found := answer.Load{Scenario: result.Scenario{Title: title}, Unit: "arrivals/s"}
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

// table of texts. The first column names the row.
type table struct {
	Head []string
	Rows [][]string
}

// Figures of each load and strategy: medians of the rounds.
func (d document) Figures() table {
	t := table{Head: []string{
		"load", "strategy", "grants/s", "denials/s", "p50", "p99", "p99.9", "slowest",
		"round trips", "WAL", "contended", "failed", "deadlocks", "audit",
	}}
	for _, g := range d.groups {
		for _, row := range g.Rows {
			cells := []string{g.Scenario.Title, row.Strategy}
			add := func(write func(float64) string, of func(result.Run) float64) {
				text := "–"
				if f := row.Figure(of).Median; !math.IsNaN(f) {
					text = write(f)
				}
				cells = append(cells, text)
			}
			add(format.Number, func(run result.Run) float64 { return run.GrantsPerSecond })
			add(format.Number, func(run result.Run) float64 { return run.DenialsPerSecond })
			for _, of := range []func(result.Latency) float64{
				func(l result.Latency) float64 { return l.P50 }, func(l result.Latency) float64 { return l.P99 },
				func(l result.Latency) float64 { return l.P999 }, func(l result.Latency) float64 { return l.Max },
			} {
				add(format.Micros, func(run result.Run) float64 { l, _ := latency(g.Scenario, run); return l.Known(of(l)) })
			}
			add(format.Number, result.Run.TripsPerDecision)
			add(func(f float64) string { return format.Number(f) + " B" }, result.Run.WALPerDecision)
			add(format.Percent, result.Run.ContendedShare)
			add(format.Percent, result.Run.FailedShare)
			add(format.Number, func(run result.Run) float64 { return result.Known(run.Deadlocks) })
			t.Rows = append(t.Rows, append(cells, row.Verdict()))
		}
	}
	return t
}

// What was run, in words. A load with stages is named beside the same one without.
func (d document) What() table {
	t := table{Head: []string{"load", "what it was"}}
	staged := map[string]string{}
	for _, s := range slices.Backward(d.Report.Scenarios) {
		p := s.Parameters
		stages := words(on(p.Combining, "combining"), on(p.Memory, "memory"), on(p.Leases, "leases"))
		if slices.ContainsFunc(d.Report.Scenarios, func(plain result.Scenario) bool { return plain.Name == s.StagesOf }) {
			staged[s.StagesOf] = "; then with " + stages
			continue
		}
		requests := format.Plural(int64(p.Callers), "caller")
		if p.Loop == "open" {
			requests = p.Arrivals + " arrivals, " + format.Number(p.RPS) + "/s"
			for i, phase := range p.Phases {
				requests += on(i == 0, ": ") + on(i > 0, ", then ") + rate(phase) + " for " + format.Seconds(phase.Seconds)
			}
		}
		t.Rows = append(t.Rows, []string{s.Title, words(
			requests, format.Plural(int64(p.Instances), "instance")+" of "+format.Plural(int64(p.Conns), "connection"),
			format.Plural(int64(p.Keys), "key")+on(p.Distribution == "zipf", fmt.Sprintf(" (zipf %g)", p.Exponent)), p.Limit,
			on(p.Cost > 1, fmt.Sprintf("%d tokens a request", p.Cost)), on(len(p.Costs) > 1, "others more or fewer"),
			format.Seconds(p.DurationSeconds), p.Durability+" durability", stages,
			on(p.AddedLatencySeconds > 0, "round trips take "+format.Seconds(p.AddedLatencySeconds)+" more"),
		) + staged[s.Name]})
	}
	slices.Reverse(t.Rows)
	return t
}

func rate(p result.Phase) string {
	return on(p.From != p.To, format.Number(p.From)+" to ") + format.Number(p.To) + "/s"
}

// on is the text, if it applies.
func on(applies bool, text string) string {
	if applies {
		return text
	}
	return ""
}

// words that are not empty, in a row.
func words(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(part string) bool { return part == "" }), ", ")
}

// Where it was run.
func (d document) Where() table {
	r := d.Report
	var settings []string
	for _, name := range slices.Sorted(maps.Keys(r.Server.Settings)) {
		settings = append(settings, name+" = "+r.Server.Settings[name])
	}
	cpus := format.Plural(int64(r.Client.CPUs), "CPU")
	server := on(!strings.HasPrefix(r.Server.Source, "PostgreSQL "), "PostgreSQL "+r.Server.Version+", ") + r.Server.Source
	return table{Rows: [][]string{
		{"Command", r.Command}, {"Server", server}, {"Settings", strings.Join(settings, ", ")},
		{"Client", words(r.Client.OS, cpus, "pglimit "+r.Client.Version, r.Client.Go)},
	}}
}
