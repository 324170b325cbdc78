package report_test

import (
	"html"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result/resulttest"
)

// picture as the page has it: its title, and its table with the head as first row.
type picture struct {
	title, text string
	table       [][]string
}

func pictures(t *testing.T, r result.Report) []picture {
	t.Helper()
	var all []picture
	cell := regexp.MustCompile(`<t[hd][^>]*>([^<\n]*)`)
	for _, figure := range regexp.MustCompile(`(?s)<figure.*?</figure>`).FindAllString(write(t, r), -1) {
		p := picture{title: html.UnescapeString(regexp.MustCompile(`<strong>([^<]*)`).FindStringSubmatch(figure)[1]), text: figure}
		_, rows, _ := strings.Cut(figure, "<thead>")
		for _, row := range strings.Split(rows, "<tr>")[1:] {
			var cells []string
			for _, c := range cell.FindAllStringSubmatch(row, -1) {
				cells = append(cells, html.UnescapeString(c[1]))
			}
			p.table = append(p.table, cells)
		}
		all = append(all, p)
	}
	return all
}

func find(t *testing.T, all []picture, title string) picture {
	t.Helper()
	i := slices.IndexFunc(all, func(p picture) bool { return p.title == title })
	if i < 0 {
		var titles []string
		for _, p := range all {
			titles = append(titles, p.title)
		}
		t.Fatalf("there is no picture %q, but %q", title, titles)
	}
	return all[i]
}

// The numbers behind a picture are those of the runs.
func TestTablesHaveTheFiguresOfTheRuns(t *testing.T) {
	t.Parallel()
	r := resulttest.WriteUp()
	all := pictures(t, r)
	for _, c := range []struct {
		title string
		of    func(result.Run, int) float64
	}{
		{"1b. Longest time to a denial", func(r result.Run, i int) float64 { return r.Series[i].Denials.Max }},
		{"2a. Time to a grant, p99", func(r result.Run, i int) float64 { return r.Series[i].Grants.P99 }},
		{"3b. Mean time to a denial", func(r result.Run, i int) float64 { return r.Series[i].Denials.Mean }},
		{"10. Requests denied over time", func(r result.Run, i int) float64 { return float64(r.Series[i].Denied) / 5 }},
		{"9. Requests granted so far", func(r result.Run, i int) float64 {
			var n int64
			for _, p := range r.Series[:i+1] {
				n += p.Granted
			}
			return float64(n)
		}},
		{"Deadlocks since the start", func(r result.Run, i int) float64 {
			var n int64
			for _, p := range r.Series[:i+1] {
				n += *p.Deadlocks
			}
			return float64(n)
		}},
		{"Write-ahead log over time", func(r result.Run, i int) float64 { return float64(*r.Series[i].WALBytes) / 5 }},
		{"Round trips over time", func(r result.Run, i int) float64 { return float64(r.Series[i].RoundTrips) / 5 }},
	} {
		p := find(t, all, c.title)
		if len(p.table) != 121 {
			t.Fatalf("%s has %d rows, want 121", c.title, len(p.table))
		}
		for i, row := range p.table[1:] {
			if row[0] != strconv.Itoa(5*(i+1)) {
				t.Fatalf("%s: row %d is at %s", c.title, i, row[0])
			}
			for j, cell := range row[1:] {
				run := r.Runs[slices.IndexFunc(r.Runs, func(r result.Run) bool { return r.Strategy == p.table[0][j+1] })]
				want := c.of(run, i)
				got, err := strconv.ParseFloat(cell, 64)
				if want == 0 && strings.Contains(c.title, "ime to") {
					continue // there was none, and so no latency
				}
				if err != nil || got < want*0.9999 || got > want*1.0001 {
					t.Fatalf("%s, %s at %s: got %q, want %v", c.title, run.Strategy, row[0], cell, want)
				}
			}
		}
	}
}
