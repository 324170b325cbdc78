package main

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/pglimit/ratelimit/internal/browsertest"
)

func evaluate[T any](t *testing.T, ctx context.Context, expression string) T { //nolint:revive // t comes first in tests
	t.Helper()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		t.Fatalf("%s: %v", expression, err)
	}
	return v
}

// inABrowser looks at the page: twelve pictures with numbers, on small and large screens, light and
// dark, from this server alone, without a complaint.
func inABrowser(t *testing.T, page string) {
	ctx := browsertest.Start(t)
	seen := listen(t, ctx)
	// The panel of locks is level at zero, but its lines are drawn too.
	const drawn = `[...document.querySelectorAll("figure .plot")].filter(svg =>
		[...svg.querySelectorAll("path.l")].some(l => (l.getAttribute("d").match(/L/g) || []).length >= 2)).length`
	if err := chromedp.Do(ctx, chromedp.EmulateViewport(1280, 900), chromedp.Navigate(page)); err != nil {
		t.Fatal(err)
	}
	if _, err := chromedp.Run(ctx, chromedp.Poll[bool](drawn+" === 12", chromedp.WithPollingTimeout(20*time.Second))); err != nil {
		t.Fatalf("%d panels have lines: %v", evaluate[int](t, ctx, drawn), err)
	}
	for _, width := range []int64{360, 768, 1280} {
		if err := chromedp.Do(ctx, chromedp.EmulateViewport(width, 900)); err != nil {
			t.Fatal(err)
		}
		if wide := evaluate[int64](t, ctx, `document.scrollingElement.scrollWidth`); wide > width {
			t.Errorf("the page is %d wide on a screen of %d", wide, width)
		}
		for _, fault := range evaluate[[]string](t, ctx, faults) {
			t.Errorf("%d wide: %s", width, fault)
		}
	}
	if rows := evaluate[int](t, ctx, `document.querySelectorAll("details").forEach(d => { d.open = true }), document.querySelectorAll("figure").forEach(draw), document.querySelectorAll("tbody tr td").length`); rows < 12*2*2 {
		t.Errorf("the tables have %d numbers", rows)
	}
	shown := map[string]string{}
	for _, scheme := range []string{"light", "dark"} {
		_, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
		if err != nil {
			t.Fatal(err)
		}
		shown[scheme] = evaluate[string](t, ctx, `getComputedStyle(document.body).backgroundColor`)
	}
	if shown["light"] == shown["dark"] {
		t.Errorf("the background is %s in both schemes", shown["dark"])
	}

	seen.Lock()
	defer seen.Unlock()
	for _, complaint := range seen.complaints {
		t.Errorf("the browser complains: %s", complaint)
	}
	for _, url := range seen.requests {
		if !strings.HasPrefix(url, page) && url != "data:," {
			t.Errorf("the page asked for %s", url)
		}
	}
}

// faults of the pictures: texts that are outside, too small, or on each other; no name or no
// description.
const faults = `[...document.querySelectorAll("svg.plot")].flatMap(svg => {
	const frame = svg.getBoundingClientRect(), title = svg.querySelector("title").textContent
	const texts = [...svg.querySelectorAll("text")].map(e => ({box: e.getBoundingClientRect(), text: e.textContent,
		size: parseFloat(getComputedStyle(e).fontSize) * frame.width / svg.viewBox.baseVal.width}))
	const faults = []
	const described = id => document.getElementById(svg.getAttribute(id))?.textContent ?? ""
	if (svg.getAttribute("role") !== "img" || described("aria-labelledby") === "" || !described("aria-describedby").includes(" now"))
		faults.push(title + ": it is no image with a name and a description")
	texts.forEach((a, i) => {
		if (a.size < 9) faults.push(title + ": " + a.text + " is " + a.size + " pixels high")
		if (a.box.left < frame.left - 1 || a.box.right > frame.right + 1 || a.box.top < frame.top - 1 || a.box.bottom > frame.bottom + 1)
			faults.push(title + ": " + a.text + " is outside")
		texts.slice(i + 1).forEach(b => {
			if (a.box.left < b.box.right && b.box.left < a.box.right && a.box.top + 3 < b.box.bottom && b.box.top + 3 < a.box.bottom)
				faults.push(title + ": " + a.text + " lies on " + b.text)
		})
	})
	return faults
})`

// observed is what a page did besides being shown.
type observed struct {
	sync.Mutex
	requests, complaints []string
}

func listen(t *testing.T, ctx context.Context) *observed { //nolint:revive // t comes first in tests
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
		case *runtime.EventConsoleAPICalled:
			seen.complaints = append(seen.complaints, string(event.Type))
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
