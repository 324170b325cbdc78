package report_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/report"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result/resulttest"
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

// media makes the page believe that it is shown on such a medium.
func media(t *testing.T, ctx context.Context, medium, scheme string) { //nolint:revive // as above
	t.Helper()
	_, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Media: medium, Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestInABrowser(t *testing.T) {
	t.Parallel()
	ctx := browsertest.Start(t)
	for name, r := range map[string]result.Report{
		"suite": partOfTheSuite(), "write-up": seven(), "capacity": resulttest.Capacity(), "two limits": twoLimits(),
	} {
		t.Run(name, func(t *testing.T) {
			seen := listen(t, ctx)
			do(t, ctx, chromedp.EmulateViewport(1280, 900), chromedp.Navigate(file(t, r)))

			t.Run("fits the screen", func(t *testing.T) { fits(t, ctx) })
			t.Run("is read aloud", func(t *testing.T) { aloud(t, ctx) })
			if name == "suite" { // the others have the same style sheet, and printing takes longer than all the rest
				t.Run("has two colour schemes", func(t *testing.T) { schemes(t, ctx) })
				t.Run("prints", func(t *testing.T) { prints(t, ctx) })
			}

			seen.Lock()
			defer seen.Unlock()
			for _, complaint := range seen.complaints {
				t.Errorf("the browser complains: %s", complaint)
			}
			if len(seen.requests) != 1 || !strings.HasPrefix(seen.requests[0], "file://") {
				t.Errorf("the page asked for %q, want itself only", seen.requests)
			}
		})
	}
}

// partOfTheSuite has two of its five loads, with and without stages: all kinds of pictures
// are among them.
func partOfTheSuite() result.Report {
	r := resulttest.Report()
	r.Scenarios = slices.DeleteFunc(r.Scenarios, func(s result.Scenario) bool {
		return !strings.HasPrefix(s.Name, "many-keys-denied") && !strings.HasPrefix(s.Name, "hot-key-granted")
	})
	for i := range r.Runs {
		r.Runs[i].Statements = []result.Statement{{Query: "select * from pglimit_take($1, $2)", Calls: 12345, MeanUS: 85.2, TotalMS: 1052}}
	}
	return r
}

// observed is what a page did besides being shown.
type observed struct {
	sync.Mutex
	requests, complaints []string
}

func listen(t *testing.T, ctx context.Context) *observed { //nolint:revive // as above
	t.Helper()
	var seen observed
	err := chromedp.Listen(ctx, func(event any) {
		seen.Lock()
		defer seen.Unlock()
		switch event := event.(type) {
		case *network.EventRequestWillBeSent:
			seen.requests = append(seen.requests, event.Request.URL)
		case *log.EventEntryAdded:
			seen.complaints = append(seen.complaints, event.Entry.Text)
		case *runtime.EventExceptionThrown:
			seen.complaints = append(seen.complaints, event.ExceptionDetails.Text)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := chromedp.Call(ctx, network.Enable, network.EnableParams{}); err != nil {
		t.Fatal(err)
	}
	return &seen
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

// aloud: each picture is an image with a name and a description.
func aloud(t *testing.T, ctx context.Context) { //nolint:revive // as above
	tree, err := chromedp.Call(ctx, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{})
	if err != nil {
		t.Fatal(err)
	}
	text := func(v *accessibility.Value) string {
		if v == nil {
			return ""
		}
		return strings.Trim(string(v.Value), `"`)
	}
	images := 0
	for _, node := range tree.Nodes {
		if node.Ignored || text(node.Role) != "image" && text(node.Role) != "img" {
			continue
		}
		images++
		if text(node.Name) == "" || len(text(node.Description)) < 20 {
			t.Errorf("an image with the name %q and the description %q", text(node.Name), text(node.Description))
		}
	}
	if drawn := evaluate[int](t, ctx, `document.querySelectorAll("svg.plot").length`); images != drawn || images == 0 {
		t.Errorf("%d images are read aloud, %d are drawn", images, drawn)
	}
}

// schemes: dark is dark, and paper is white whatever the screen is.
func schemes(t *testing.T, ctx context.Context) { //nolint:revive // as above
	const background = `getComputedStyle(document.body).backgroundColor + getComputedStyle(document.querySelector("figure")).backgroundColor`
	shown := map[string]string{}
	for _, m := range [][2]string{{"screen", "light"}, {"screen", "dark"}, {"print", "light"}, {"print", "dark"}} {
		media(t, ctx, m[0], m[1])
		shown[m[0]+" "+m[1]] = evaluate[string](t, ctx, background)
	}
	media(t, ctx, "", "light")
	if shown["screen light"] == shown["screen dark"] {
		t.Errorf("the background is %s in both schemes", shown["screen dark"])
	}
	if white := "rgb(255, 255, 255)rgb(255, 255, 255)"; shown["print light"] != white || shown["print dark"] != white {
		t.Errorf("printed, the background is %s, and %s with a dark screen", shown["print light"], shown["print dark"])
	}
}

func prints(t *testing.T, ctx context.Context) { //nolint:revive // as above
	pdf, err := chromedp.Run(ctx, chromedp.PrintToPDF(chromedp.PDFPaper(chromedp.PaperA4)))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(pdf, []byte("%PDF-")) || len(pdf) < 10_000 {
		t.Errorf("printing gives %d bytes, which begin %q", len(pdf), pdf[:min(8, len(pdf))])
	}
}
