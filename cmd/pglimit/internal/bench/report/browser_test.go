package report_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/report"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
	"github.com/pglimit/ratelimit/internal/browsertest"
)

// file holds the report and returns its address.
func file(t *testing.T, r result.Report) string {
	t.Helper()
	var page bytes.Buffer
	if err := report.Write(&page, r, headline, advice); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "report.html")
	if err := os.WriteFile(name, page.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return "file://" + name
}

func do(t *testing.T, ctx context.Context, actions ...chromedp.Action[chromedp.Void]) { //nolint:revive // t comes first in tests
	t.Helper()
	if err := chromedp.Do(ctx, actions...); err != nil {
		t.Fatal(err)
	}
}

func evaluate[T any](t *testing.T, ctx context.Context, expression string) T { //nolint:revive // as above
	t.Helper()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		t.Fatalf("%s: %v", expression, err)
	}
	return v
}

func TestInABrowser(t *testing.T) {
	t.Parallel()
	ctx := browsertest.Start(t)
	for name, of := range fixtures {
		t.Run(name, func(t *testing.T) {
			do(t, ctx, chromedp.Navigate(file(t, of())))
			fits(t, ctx)
		})
	}
}

// fits: the page does not move sideways, no text of a picture is cut off or too small, and
// no two of its texts lie on each other.
func fits(t *testing.T, ctx context.Context) { //nolint:revive // as above
	for _, width := range []int64{360, 768, 1280} {
		do(t, ctx, chromedp.EmulateViewport(width, 900))
		if wide := evaluate[int64](t, ctx, `document.scrollingElement.scrollWidth`); wide > width {
			t.Errorf("the page is %d wide on a screen of %d", wide, width)
		}
		if width == 1280 { // on a small screen a table may be scrolled
			const cut = `[...document.querySelectorAll(".scroll")].filter(e => e.scrollWidth > e.clientWidth).map(e => e.innerText.slice(0, 60) + " by " + (e.scrollWidth - e.clientWidth))`
			open := `document.querySelectorAll("details").forEach(d => { d.open = true }), `
			if tables := evaluate[[]string](t, ctx, open+cut); len(tables) > 0 {
				t.Errorf("columns are cut: %q", tables)
			}
			evaluate[int](t, ctx, `document.querySelectorAll("details").forEach(d => { d.open = false }), 0`)
		}
		for _, fault := range evaluate[[]string](t, ctx, `[...document.querySelectorAll("svg.plot")].flatMap(svg => {
			const frame = svg.getBoundingClientRect(), title = svg.querySelector("title").textContent
			const texts = [...svg.querySelectorAll("text")].map(e => ({box: e.getBoundingClientRect(), text: e.textContent,
				size: parseFloat(getComputedStyle(e).fontSize) * frame.width / svg.viewBox.baseVal.width}))
			const faults = []
			texts.forEach((a, i) => {
				if (a.size < 9.5) faults.push(title + ": " + a.text + " is " + a.size + " pixels high")
				if (a.box.left < frame.left - 1 || a.box.right > frame.right + 1 || a.box.top < frame.top - 1 || a.box.bottom > frame.bottom + 1)
					faults.push(title + ": " + a.text + " is outside")
				texts.slice(i + 1).forEach(b => {
					if (a.box.left < b.box.right && b.box.left < a.box.right && a.box.top + 3 < b.box.bottom && b.box.top + 3 < a.box.bottom)
						faults.push(title + ": " + a.text + " lies on " + b.text)
				})
			})
			return faults
		})`) {
			t.Errorf("%d wide: %s", width, fault)
		}
	}
}
