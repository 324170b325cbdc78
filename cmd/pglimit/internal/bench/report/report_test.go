package report_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"html"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/answer"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/report"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result/resulttest"
)

func write(t *testing.T, r result.Report) string {
	t.Helper()
	var page bytes.Buffer
	if err := report.Write(&page, r); err != nil {
		t.Fatal(err)
	}
	return page.String()
}

// suite of eight loads, and seven strategies: the most that the default run has.
func suite() result.Report {
	r := resulttest.Report()
	r.Scenarios = r.Scenarios[:8]
	for _, name := range []string{"sliding_window", "sliding_log", "fixed_window"} {
		for _, run := range r.Runs {
			if run.Strategy == "upsert" {
				run.Strategy = name
				r.Runs = append(r.Runs, run)
			}
		}
	}
	return r
}

func writeUp() result.Report {
	return resulttest.WriteUp("token_bucket", "upsert", "for_update_nowait", "exclusion_range",
		"published_for_update_nowait", "published_exclusion", "published_upsert")
}

// noisy rounds lie so far apart that there is no answer.
func noisy() result.Report {
	r := suite()
	for i := range r.Runs {
		r.Runs[i].GrantsPerSecond *= float64(r.Runs[i].Round)
		r.Runs[i].DenialsPerSecond *= float64(r.Runs[i].Round)
		r.Runs[i].DecisionsPerSecond *= float64(r.Runs[i].Round)
	}
	return r
}

var fixtures = map[string]func() result.Report{"suite": suite, "write-up": writeUp, "capacity": resulttest.Capacity, "noisy": noisy}

func TestPage(t *testing.T) {
	t.Parallel()
	for name, of := range fixtures {
		page := write(t, of())
		if len(page) >= 400_000 {
			t.Errorf("%s has %d bytes", name, len(page))
		}
		for _, not := range []string{"(none)", "NaN", "Inf", "http:", "https:", "<script", "<link", "@import", "url(", "src=", "<iframe", "<img", "<table>\n<tbody>\n</table>"} {
			if strings.Contains(page, not) {
				t.Errorf("%s has %q", name, not)
			}
		}
		for _, svg := range regexp.MustCompile(`(?s)<svg.*?</svg>`).FindAllString(page, -1) {
			for d := xml.NewDecoder(strings.NewReader(svg)); ; {
				if _, err := d.Token(); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					t.Fatalf("%s: %v: %s", name, err, svg)
				}
			}
			if !strings.Contains(svg, "<rect") && !strings.Contains(svg, "L") {
				t.Errorf("%s: an empty panel: %s", name, svg)
			}
		}
		tables := strings.Count(page, "<table>")
		for _, element := range []string{"details", "figure", "div", "table", "section", "dl"} {
			if open, closed := strings.Count(page, "<"+element), strings.Count(page, "</"+element+">"); open != closed && element != "figure" {
				t.Errorf("%s: %d <%s>, and %d are closed", name, open, element, closed)
			}
		}
		if panels := strings.Count(page, "<svg"); tables < panels {
			t.Errorf("%s: %d panels, but %d tables", name, panels, tables)
		}
	}
}

// bars of the first picture, load by load: the names whose mark is that.
func bars(page, mark string) (names [][]string) {
	_, picture, _ := strings.Cut(page, `<div class="panels">`)
	picture, _, _ = strings.Cut(picture, "<details>")
	for _, svg := range strings.Split(picture, "<svg")[1:] {
		var of []string
		for _, bar := range regexp.MustCompile(`<text class="name[^>]*>([^<]*)<.*?<text class="mark[^>]*>([^<]*)<`).FindAllStringSubmatch(svg, -1) {
			if html.UnescapeString(bar[2]) == mark {
				of = append(of, bar[1])
			}
		}
		names = append(names, of)
	}
	return names
}

// The headline and the bars are those of one answer.
func TestHeadlineAndPictureAgree(t *testing.T) {
	t.Parallel()
	for name, of := range fixtures {
		r := of()
		a, page := answer.Of(r), write(t, r)
		if heading := html.EscapeString(a.Headline); heading == "" || !strings.Contains(page, "<h1>"+heading+"</h1>") {
			t.Errorf("%s: the headline is not %q", name, a.Headline)
		}
		var best, tied [][]string
		for _, l := range a.Loads {
			var one, others []string
			for _, c := range l.Cells {
				if c.Best && !a.Noisy {
					one = append(one, c.Strategy)
				}
				if c.Close && !a.Noisy {
					others = append(others, c.Strategy)
				}
			}
			best, tied = append(best, one), append(tied, others)
		}
		if got := bars(page, "best"); fmt.Sprint(got) != fmt.Sprint(best) {
			t.Errorf("%s: the best bars are %v, but the best strategies %v", name, got, best)
		}
		if got := bars(page, "≈ best"); fmt.Sprint(sorted(got)) != fmt.Sprint(sorted(tied)) {
			t.Errorf("%s: the bars too close to call are %v, but the strategies %v", name, got, tied)
		}
	}
}

func sorted(all [][]string) [][]string {
	for _, names := range all {
		slices.Sort(names)
	}
	return all
}

// A strategy that granted too much in a search for capacity, and one that is too slow at every rate, are marked and named.
func TestCapacityWithAFault(t *testing.T) {
	t.Parallel()
	r := resulttest.Capacity()
	r.Capacity[1].Probes[0].OverTokens = 3
	page := write(t, r)
	if got := bars(page, "fault"); fmt.Sprint(got) != "[["+r.Capacity[1].Strategy+" exclusion_range]]" || !strings.Contains(page, "<li>"+r.Capacity[1].Strategy+", kept, p99 under 10 ms: over by 3 tokens") {
		t.Errorf("the faults are %v", got)
	}
}

func TestHostileNamesAreText(t *testing.T) {
	t.Parallel()
	const hostile = `"></style><script>alert('x')</script>`
	r := writeUp()
	r.Command, r.Server.Version, r.Server.Source, r.Client.Go = hostile, hostile, hostile, hostile
	r.Server.Settings = map[string]string{hostile: hostile}
	s := &r.Scenarios[0]
	s.Title, s.Arrivals = hostile, hostile
	for i := range r.Runs {
		r.Runs[i].Strategy += hostile
		r.Runs[i].Audit.Verdict = hostile
	}
	if page := write(t, r); strings.Contains(page, "<script") || strings.Count(page, "</style>") != 1 || !strings.Contains(page, "alert(") {
		t.Error("a name becomes markup, or is not there")
	}
}

func TestLittleData(t *testing.T) {
	t.Parallel()
	short, none := suite(), suite()
	for i, run := range none.Runs {
		none.Runs[i] = result.Run{Scenario: run.Scenario, Strategy: run.Strategy}
		short.Runs[i].Series = run.Series[:4]
		short.Runs[i].GrantLatency.Curve, short.Runs[i].DenialLatency.Curve = nil, nil
	}
	for name, r := range map[string]result.Report{"no report": {}, "no figures": none, "no runs": {Scenarios: none.Scenarios}, "short runs": short} {
		page := write(t, r)
		if strings.Contains(page, "NaN") || strings.Contains(page, "Inf") || strings.Contains(page, `class="line`) {
			t.Errorf("%s: there is NaN, Inf or a line in the page", name)
		}
	}
}
