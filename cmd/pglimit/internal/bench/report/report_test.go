package report_test

import (
	"bytes"
	"errors"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/report"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result/resulttest"
)

func write(t *testing.T, r result.Report) string {
	t.Helper()
	var page bytes.Buffer
	if err := report.Write(&page, r, headline, advice); err != nil {
		t.Fatal(err)
	}
	return page.String()
}

var fixtures = map[string]func() result.Report{
	"suite": resulttest.Report, "write-up": seven, "capacity": resulttest.Capacity,
}

func TestReportWorksOffline(t *testing.T) {
	t.Parallel()
	for name, of := range fixtures {
		page := write(t, of())
		for _, not := range []string{"http:", "https:", "<script", "<link", "@import", "url(", "src=", "<iframe", "<img"} {
			if strings.Contains(page, not) {
				t.Errorf("%s has %q", name, not)
			}
		}
	}
}

func TestReportIsUnderOneMegabyte(t *testing.T) {
	t.Parallel()
	for name, of := range fixtures {
		if size := len(write(t, of())); size >= 1_000_000 {
			t.Errorf("%s has %d bytes", name, size)
		} else {
			t.Logf("%s has %d bytes", name, size)
		}
	}
	// A sampler that takes ten times as many points does not make the file larger.
	r := seven()
	for i, run := range r.Runs {
		var fine []result.Point
		for _, p := range run.Series {
			for part := range 10 {
				q := p
				q.Seconds = p.Seconds - run.Interval()*float64(9-part)/10
				fine = append(fine, q)
			}
		}
		r.Runs[i].Series = fine
	}
	page := write(t, r)
	if len(page) >= 1_000_000 {
		t.Errorf("with 1200 points there are %d bytes", len(page))
	}
	if !strings.Contains(page, "each point stands for up to 10 that were measured") {
		t.Error("the report does not say that points were joined")
	}
}

// Links, labels and descriptions lead somewhere, and no id is there twice.
func TestReferences(t *testing.T) {
	t.Parallel()
	for name, of := range fixtures {
		page := write(t, of())
		ids := map[string]bool{}
		for _, id := range regexp.MustCompile(` id="([^"]*)"`).FindAllStringSubmatch(page, -1) {
			if ids[id[1]] {
				t.Errorf("%s: the id %s is there twice", name, id[1])
			}
			ids[id[1]] = true
		}
		for _, ref := range regexp.MustCompile(` (?:href="#|aria-labelledby="|aria-describedby=")([^"]*)"`).FindAllStringSubmatch(page, -1) {
			if !ids[ref[1]] {
				t.Errorf("%s: there is no %s", name, ref[1])
			}
		}
		if pictures := strings.Count(page, `role="img"`); pictures == 0 || strings.Count(page, "<figcaption>") != pictures || strings.Count(page, "<details>") != pictures {
			t.Errorf("%s: not each of the %d pictures has a caption and a table", name, pictures)
		}
	}
}

// Headings do not skip a level, and there is one of the first.
func TestHeadingsAreInOrder(t *testing.T) {
	t.Parallel()
	for name, of := range fixtures {
		before, first := 0, 0
		for _, heading := range regexp.MustCompile(`<h([1-6])[^>]*>([^<]*)`).FindAllStringSubmatch(write(t, of()), -1) {
			level, _ := strconv.Atoi(heading[1])
			if level > before+1 {
				t.Errorf("%s: %q is of level %d after one of level %d", name, heading[2], level, before)
			}
			if level == 1 {
				first++
			}
			before = level
		}
		if first != 1 {
			t.Errorf("%s has %d headings of the first level", name, first)
		}
	}
}

func TestHostileNamesAreText(t *testing.T) {
	t.Parallel()
	const hostile = `"></style><script>alert('x')</script>`
	r := seven()
	r.Command, r.Server.Version, r.Server.Source, r.Client.Go = hostile, hostile, hostile, hostile
	r.Server.Settings = map[string]string{hostile: hostile}
	s := &r.Scenarios[0]
	s.Title, s.About, s.Parameters.Limit, s.Parameters.Durability = hostile, hostile, hostile, hostile
	for i := range r.Runs {
		r.Runs[i].Strategy += hostile
		r.Runs[i].Errors = map[string]int64{hostile: 1}
		r.Runs[i].FirstErrors = map[string]string{hostile: hostile}
		r.Runs[i].Audit.Verdict = hostile
	}
	var page bytes.Buffer
	if err := report.Write(&page, r, hostile, []string{hostile}); err != nil {
		t.Fatal(err)
	}
	text := page.String()
	if strings.Contains(text, "<script") || strings.Count(text, "</style>") != 1 {
		t.Error("a name becomes markup")
	}
	if !strings.Contains(text, "alert(") {
		t.Error("the names are not there at all")
	}
}

func TestLittleData(t *testing.T) {
	t.Parallel()
	one := seven()
	for i := range one.Runs {
		run := &one.Runs[i]
		run.Series = run.Series[:1]
		run.KeyGrants.Most = run.KeyGrants.Most[:1]
	}
	none := seven()
	for i, run := range none.Runs {
		none.Runs[i] = result.Run{Scenario: run.Scenario, Strategy: run.Strategy}
	}
	for name, r := range map[string]result.Report{"no report": {}, "no figures": none, "one point": one, "no runs": {Scenarios: one.Scenarios}} {
		page := write(t, r)
		if strings.Contains(page, "NaN") || strings.Contains(page, "Inf") {
			t.Errorf("%s: there is NaN or Inf in the page", name)
		}
		if drawn := strings.Contains(page, "<svg"); drawn != (name == "one point") {
			t.Errorf("%s: there are pictures: %v", name, drawn)
		}
	}
}

type brokenPipe struct{}

var errPipe = errors.New("broken pipe")

func (brokenPipe) Write([]byte) (int, error) { return 0, errPipe }

func TestWriteSaysThatItCouldNot(t *testing.T) {
	t.Parallel()
	if err := report.Write(brokenPipe{}, resulttest.Capacity(), "", nil); !errors.Is(err, errPipe) {
		t.Errorf("got %v, want %v", err, errPipe)
	}
}

func TestTop(t *testing.T) {
	t.Parallel()
	page := write(t, seven())
	at := -1
	for _, text := range []string{
		"(open loop)", "<h1>" + headline + "</h1>", `<figure class="chart" id="answer">`, "<h2 id=\"recommendation\">", advice[0], "for_update_nowait is only for code that must not change<br>How sure",
		"<nav", "How to read", "<h2 id=\"s1\">", "<h2 id=\"what\">", "pglimit bench --scenario write-up --published --report write-up.html",
		"20 November 2026", "PostgreSQL 17.6 (Debian 17.6-1.pgdg12&#43;1), a throwaway server of this machine", "synchronous_commit = on",
		"8 CPUs, linux/amd64", "pglimit v0.4.0, go1.26.8", "5/s for 3\u00a0min, then 50/s for 3\u00a0min, then 100/s for 4\u00a0min (poisson); at most 256 callers, 2 instances, 16 connections",
	} {
		next := strings.Index(page, text)
		if next <= at {
			t.Errorf("%q is not there, or not in its place", text)
		}
		at = max(at, next)
	}
	r := seven()
	if strings.Contains(page, "interrupted") {
		t.Error("a run that was whole is called interrupted")
	}
	r.Interrupted = true
	if !strings.Contains(write(t, r), "The bench was interrupted") {
		t.Error("an interrupted run is not called so")
	}
}

// The loop is said once, not in the title of each picture, unless the loads differ in it.
func TestTheLoopIsSaidOnce(t *testing.T) {
	t.Parallel()
	for name, of := range fixtures {
		for _, loop := range []string{"open", "closed"} {
			if said := regexp.MustCompile(`<(h1|p class="kind"|strong)>[^<]*\(`+loop+` loop\)`).FindAllString(write(t, of()), -1); len(said) > 1 {
				t.Errorf("%s: %q", name, said)
			}
		}
	}
	mixed := resulttest.Report()
	mixed.Scenarios[0].Parameters.Loop = "open"
	page := write(t, mixed)
	if strings.Contains(page, "closed loop)") || !strings.Contains(page, "Open loop: ") || !strings.Contains(page, "Closed loop: ") || !strings.Contains(page, `<th scope="col">loop`) {
		t.Error("two loops are not told apart")
	}
}

// The picture at the top has how fast each strategy was beside the best, over all loads.
func TestTheAnswer(t *testing.T) {
	t.Parallel()
	r := resulttest.Report()
	r.Scenarios = slices.DeleteFunc(r.Scenarios, func(s result.Scenario) bool { return s.StagesOf != "" })[:2]
	pace := map[string][2]float64{"token_bucket": {1000, 400}, "upsert": {500, 200}, "for_update_nowait": {1000, 100}, "exclusion_range": {250, 400}}
	for i, run := range r.Runs {
		for j, s := range r.Scenarios {
			if s.Name == run.Scenario {
				at := pace[run.Strategy][j]
				r.Runs[i].GrantsPerSecond, r.Runs[i].DenialsPerSecond, r.Runs[i].DecisionsPerSecond, r.Runs[i].Contended = at, at, at, 0
			}
		}
	}
	table := find(t, pictures(t, r), "How fast each strategy was, beside the fastest").table
	for i, want := range [][]string{{"token_bucket", "100", "100", "100"}, {"upsert", "50", "50", "50"}, {"for_update_nowait", "50", "25", "100"}, {"exclusion_range", "50", "25", "100"}} {
		if !slices.Equal(table[i+1], want) {
			t.Errorf("got %q, want %q", table[i+1], want)
		}
	}
	for name, want := range map[string]string{"write-up": "Tokens granted, of what a perfect limiter would have granted", "capacity": "The highest rate of each strategy"} {
		if got := pictures(t, fixtures[name]())[0].title; got != want {
			t.Errorf("%s begins with %q", name, got)
		}
	}
}

// The same load with stages is inside the section of the one without.
func TestStagesAreBelowTheirScenario(t *testing.T) {
	t.Parallel()
	var titles []string
	for _, heading := range regexp.MustCompile(`<h([23]) id="s\d+">([^<]*)`).FindAllStringSubmatch(write(t, resulttest.Report()), -1) {
		titles = append(titles, heading[1]+" "+heading[2])
	}
	want := []string{
		"2 Many keys, all granted", "3 Many keys, all granted, with the stages",
		"2 Many keys, mostly denied", "3 Many keys, mostly denied, with the stages",
		"2 One hot key, all granted", "3 One hot key, all granted, with the stages",
		"2 One hot key, mostly denied", "3 One hot key, mostly denied, with the stages",
		"2 One request per 2 s and partner", "3 One request per 2 s and partner, with the stages",
	}
	if !slices.Equal(titles, want) {
		t.Errorf("got %q", titles)
	}
}
