package report_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result/resulttest"
)

// text of a row of the first table with such a caption, cells divided by bars.
func tableRow(t *testing.T, page, caption, head string) string {
	t.Helper()
	_, table, found := strings.Cut(page, "<caption><span>"+caption)
	if !found {
		t.Fatalf("there is no table %q", caption)
	}
	table, _, _ = strings.Cut(table, "</table>")
	for row := range strings.SplitSeq(table, "<tr") {
		_, row, _ = strings.Cut(row, ">")
		row = strings.ReplaceAll(row, "<td>", "|")
		row = regexp.MustCompile(`<[^>]*>`).ReplaceAllString(row, " ")
		row = strings.Join(strings.Fields(strings.ReplaceAll(row, "_ ", "_")), " ")
		row = strings.TrimSpace(strings.ReplaceAll(row, " |", "|"))
		if name, _, _ := strings.Cut(row, "|"); name == head {
			return row
		}
	}
	t.Fatalf("the table %q has no row %q: %s", caption, head, table)
	return ""
}

func TestCriterion(t *testing.T) {
	t.Parallel()
	r := resulttest.WriteUp()
	r.Runs[1].Granted = 305
	page := write(t, r)
	const caption = "The write-up's criterion: at most 300 tokens granted in the whole run"
	for strategy, want := range map[string]string{
		"token_bucket":        "token_bucket|299|99.7 %|0|0 %|13.2 ms|7.6 ms|kept",
		"upsert":              "upsert|305|102 %|0|0 %|16.5 ms|9.5 ms|not kept: 5 too many",
		"published_exclusion": "published_exclusion|156|52 %|1.43k|74.7 %|3 s|3 s|kept, but requests failed",
	} {
		if got := tableRow(t, page, caption, strategy); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	if strings.Contains(write(t, resulttest.Report()), "criterion") {
		t.Error("a scenario without a criterion has one")
	}
}

// A row of several runs has their medians, and from where to where they lie.
func TestSummary(t *testing.T) {
	t.Parallel()
	r := resulttest.Report()
	r.Runs[0].GrantsPerSecond, r.Runs[4].GrantsPerSecond = 19_000, 21_000
	r.Runs[4].Audit.OverTokens = 3
	r.Runs[4].Audit.Verdict = r.Runs[4].Audit.Judge(0)
	page := write(t, r)
	got := tableRow(t, page, "Summary: medians", "token_bucket")
	if !strings.HasPrefix(got, "token_bucket|19k 19k–21k|0|780 µs") || !strings.HasSuffix(got, "|0|0|OVER by 3") {
		t.Errorf("got %s", got)
	}
	if strings.Count(page, `<tr class="bad">`) != 1 {
		t.Error("the row that is over its limit is not marked, or another one is")
	}
}

func TestStatements(t *testing.T) {
	t.Parallel()
	r := resulttest.WriteUp("token_bucket")
	if strings.Contains(write(t, r), "own statistics") {
		t.Error("a server without statistics has some")
	}
	for calls := range int64(5) {
		r.Runs[0].Statements = append(r.Runs[0].Statements, result.Statement{
			Query: "select\n  allowed <> $1" + strings.Repeat(" ,x", int(calls)*200), Calls: 12345 - calls, MeanUS: 85.2, TotalMS: 1052,
		})
	}
	page := write(t, r)
	if got, want := tableRow(t, page, "Statements that took", "token_bucket"), "token_bucket|12,345|85.2 µs|1.05 s select allowed &lt;&gt; $1"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if shown := strings.Count(page, `<td class="query">`); shown != 3 || len(page) > 300_000 {
		t.Errorf("%d statements in %d bytes, want 3", shown, len(page))
	}
}

func TestCapacity(t *testing.T) {
	t.Parallel()
	r := resulttest.Capacity()
	r.Capacity[0].Rate = 16_100
	page := write(t, r)
	const caption = "The highest rate of arrivals at which p99 stayed under 10\u00a0ms"
	for strategy, want := range map[string]string{
		"token_bucket": "token_bucket|16.1k/s|exact", "exclusion_range": "exclusion_range|at none|exact",
	} {
		if got := tableRow(t, page, caption, strategy); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	all := pictures(t, r)
	if len(all) != 4 {
		t.Fatalf("there are %d pictures, want 4", len(all))
	}
	if rows := find(t, all, "Decisions per second by callers (closed loop)").table; len(rows) != 8 || rows[1][0] != "1" || rows[7][0] != "64" {
		t.Errorf("the sweep is %v", rows)
	}
	if p := find(t, all, "p99 by arrival rate (open loop)"); !strings.Contains(p.text, "the bound: 10\u00a0ms") {
		t.Error("the bound is not drawn")
	}
}
