package report_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
	"github.com/pglimit/ratelimit/internal/browsertest"
)

// Three screens at 1,280 pixels, nothing to scroll sideways at 400, and no text on another or outside its panel.
func TestInABrowser(t *testing.T) {
	t.Parallel()
	ctx := browsertest.Start(t)
	evaluate := func(expression string) int {
		n, err := chromedp.Run(ctx, chromedp.Evaluate[int](expression))
		if err != nil {
			t.Fatalf("%s: %v", expression, err)
		}
		return n
	}
	for name, of := range map[string]func() result.Report{"suite": suite, "write-up": writeUp} {
		file := filepath.Join(t.TempDir(), "page.html")
		if err := os.WriteFile(file, []byte(write(t, of())), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := chromedp.Do(ctx, chromedp.Navigate("file://"+file)); err != nil {
			t.Fatal(err)
		}
		for _, width := range []int{400, 1280} {
			if err := chromedp.Do(ctx, chromedp.EmulateViewport(int64(width), 900)); err != nil {
				t.Fatal(err)
			}
			if wide := evaluate(`document.scrollingElement.scrollWidth`); wide > width {
				t.Errorf("%s is %d wide on a screen of %d", name, wide, width)
			}
			bad, err := chromedp.Run(ctx, chromedp.Evaluate[[]string](misplaced))
			if err != nil {
				t.Fatal(err)
			}
			for _, text := range bad {
				t.Errorf("%s, %d wide: %s", name, width, text)
			}
		}
		if high := evaluate(`document.scrollingElement.scrollHeight`); high > 2700 {
			t.Errorf("%s is %d high at 1,280", name, high)
		}
	}
	shown := map[string]bool{}
	for _, scheme := range []string{"light", "dark"} {
		features := []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}
		if _, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: features}); err != nil {
			t.Fatal(err)
		}
		colour, err := chromedp.Run(ctx, chromedp.Evaluate[string](`getComputedStyle(document.body).backgroundColor`))
		if err != nil {
			t.Fatal(err)
		}
		shown[colour] = true
	}
	if len(shown) != 2 {
		t.Errorf("light and dark have the background %v", shown)
	}
}

// misplaced texts of the panels: too small, outside, or on each other.
const misplaced = `[...document.querySelectorAll("svg")].filter(svg => svg.checkVisibility()).flatMap(svg => {
	const frame = svg.getBoundingClientRect(), faults = []
	const texts = [...svg.querySelectorAll("text")].filter(e => e.textContent).map(e => ({box: e.getBoundingClientRect(), text: e.textContent,
		size: parseFloat(getComputedStyle(e).fontSize) * frame.width / svg.viewBox.baseVal.width}))
	texts.forEach((a, i) => {
		if (a.size < 9.5) faults.push(a.text + " is " + a.size + " pixels high")
		if (a.box.left < frame.left - 2 || a.box.right > frame.right + 2) faults.push(a.text + " is outside")
		texts.slice(i + 1).forEach(b => {
			if (a.box.left < b.box.right && b.box.left < a.box.right && a.box.top + 3 < b.box.bottom && b.box.top + 3 < a.box.bottom)
				faults.push(a.text + " lies on " + b.text)
		})
	})
	return faults
})`
