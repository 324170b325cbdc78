package report_test

import (
	"bytes"
	"errors"
	"regexp"
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

func TestReportWorksOfflineAndIsUnderOneMegabyte(t *testing.T) {
	t.Parallel()
	for name, of := range fixtures {
		page := write(t, of())
		if len(page) >= 1_000_000 {
			t.Errorf("%s has %d bytes", name, len(page))
		}
		for _, not := range []string{"http:", "https:", "<script", "<link", "@import", "url(", "src=", "<iframe", "<img"} {
			if strings.Contains(page, not) {
				t.Errorf("%s has %q", name, not)
			}
		}
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
