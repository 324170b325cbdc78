package integration

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
	"github.com/chromedp/chromedp/kb"

	"github.com/pglimit/ratelimit/adapters/adminlimit"
	"github.com/pglimit/ratelimit/internal/browsertest"
	"github.com/pglimit/ratelimit/limits"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

func evaluate[T any](t *testing.T, ctx context.Context, expression string) T { //nolint:revive // t comes first in tests
	t.Helper()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		t.Fatalf("%s: %v", expression, err)
	}
	return v
}

// untilTrue waits for what a page does by itself.
func untilTrue(t *testing.T, ctx context.Context, expression string) { //nolint:revive // t comes first in tests
	t.Helper()
	until(t, expression, func() bool { // while the browser leaves a page, there is none
		is, err := chromedp.Run(ctx, chromedp.Evaluate[bool](expression))
		return err == nil && is
	})
}

// A person who knows the page from its documentation finds who is limited most and raises the limit for a day, with the
// keyboard. On each screen, light and dark, everything fits, has a visible focus, comes from this server, and the browser
// complains of nothing.
func TestAdminInABrowser(t *testing.T) {
	t.Parallel()
	ctx := browsertest.Start(t)
	pool := newMigrated(t)
	top := pglimit.TopFrom(pool, pglimit.TopConfig{})
	long := "tenant:" + strings.Repeat("x", 300)
	askTimes(t, newLimiter(t, pool, strategies.TokenBucket{}, counting("api", top)), map[string]int{"ann": 9, long: 3})
	execute(t, pool, "update pglimit.top_keys set at_ns = at_ns - 30000000000, since_ns = since_ns - 30000000000")
	table := limits.New(pool)
	for _, rule := range []limits.Rule{
		{Limiter: "api", Limit: "5/s", Note: strings.Repeat("a long note ", 20)},
		{Limiter: "api", Prefix: long, Action: pglimit.ActionDeny, Note: strings.Repeat("w", 200)},
	} {
		_, err := table.Set(ctx, rule)
		must(t, err)
	}
	p := newAdminPage(t, pool, adminlimit.Config{})
	seen := listen(t, ctx)
	_, err := chromedp.Call(ctx, emulation.SetFocusEmulationEnabled, emulation.SetFocusEmulationEnabledParams{Enabled: true})
	must(t, err)
	open := func(path string) {
		t.Helper()
		must(t, chromedp.Do(ctx, chromedp.Navigate(p.url+path)))
	}
	for _, width := range []int64{1280, 768, 400} {
		must(t, chromedp.Do(ctx, chromedp.EmulateViewport(width, 900)))
		shown := map[string]bool{}
		for _, scheme := range []string{"light", "dark"} {
			_, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
			must(t, err)
			for _, path := range []string{"", "rules?limiter=api", "key?limiter=api&key=ann", "key?limiter=api&key=" + long, "permits", "key?limiter=&key=x"} {
				if open(path); strings.HasSuffix(path, "=x") {
					continue
				}
				if wide := evaluate[int64](t, ctx, `document.scrollingElement.scrollWidth`); wide > width {
					t.Errorf("%s is %d wide on a screen of %d", path, wide, width)
				}
				for _, fault := range evaluate[[]string](t, ctx, faults) {
					t.Errorf("%s, %d wide, %s: %s", path, width, scheme, fault)
				}
			}
			shown[evaluate[string](t, ctx, `getComputedStyle(document.body).backgroundColor`)] = true
		}
		if len(shown) != 2 {
			t.Errorf("light and dark look the same: %v", shown)
		}
	}

	open("")
	evaluate[bool](t, ctx, `document.querySelector("#live tbody a").focus(), document.getElementById("live").dataset.first = "1", true`)
	untilTrue(t, ctx, `document.getElementById("live")?.dataset.first === undefined && document.activeElement.textContent === "ann"`)
	must(t, chromedp.Do(ctx, chromedp.KeyEvent(kb.Enter)))
	untilTrue(t, ctx, `document.querySelector("h1")?.textContent === "ann of api"`)
	evaluate[bool](t, ctx, `document.querySelector("#set [name=limit]").select(), document.querySelector("#set [name=limit]").focus(), true`)
	must(t, chromedp.Do(ctx, chromedp.KeyEvent("50/s"+kb.Tab+kb.Tab+kb.Tab+"ticket 7"+kb.Enter)))
	untilTrue(t, ctx, `document.querySelector(".done") !== null`)
	rules, err := table.List(ctx)
	must(t, err)
	if rule := rules[0]; rule.Key != "ann" || rule.Limit != "50/s" || rule.Note != "ticket 7" || rule.Expires.Sub(rule.At).Round(time.Minute) != 24*time.Hour {
		t.Errorf("%+v", rule)
	}

	seen.Lock()
	defer seen.Unlock()
	for _, complaint := range seen.complaints {
		if !strings.Contains(complaint, "400 (Bad Request)") { // of the page that says what is wrong with a name
			t.Errorf("the browser complains: %s", complaint)
		}
	}
	for _, url := range seen.requests {
		if !strings.HasPrefix(url, p.url) && url != "data:," {
			t.Errorf("the page asked for %s", url)
		}
	}
	if len(seen.requests) == 0 {
		t.Error("nothing was asked for")
	}
}

// faults of a page: what has no name, no visible focus, or too little contrast.
const faults = `(() => {
	const faults = []
	const light = (color) => {
		const [r, g, b] = color.match(/[\d.]+/g).map((v) => (v /= 255, v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4))
		return .2126 * r + .7152 * g + .0722 * b
	}
	const behind = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor; if (!/, 0\)$/.test(c)) return c } return "rgb(255, 255, 255)" }
	for (const e of document.querySelectorAll("a, button, input:not([type=hidden]), select, summary, [tabindex]")) {
		if (!e.checkVisibility()) continue
		e.focus({focusVisible: true})
		if (document.activeElement !== e || getComputedStyle(e).outlineStyle === "none") faults.push("no visible focus: " + e.outerHTML)
		const name = e.getAttribute("aria-label") ?? e.labels?.[0]?.textContent ?? document.getElementById(e.getAttribute("aria-labelledby"))?.textContent ?? e.textContent
		if (!name.trim()) faults.push("no name: " + e.outerHTML)
	}
	for (const e of document.querySelectorAll("main *, header *, footer")) {
		if (!e.checkVisibility() || ![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())) continue
		const a = light(getComputedStyle(e).color), b = light(behind(e)), contrast = (Math.max(a, b) + .05) / (Math.min(a, b) + .05)
		if (contrast < 4.5) faults.push("contrast of " + contrast.toFixed(1) + ": " + e.outerHTML.slice(0, 200))
	}
	document.activeElement.blur()
	return faults
})()`

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
