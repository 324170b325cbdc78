package report_test

import (
	"regexp"
	"strings"
	"testing"

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
