package serve

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

const limits = `

limiters:
  api: {limit: 10/s burst 20}
  login: {limit: 2/1m}
  blocks: {limit: 1/1m, block: {after: 1, within: 1m, for: 1h, max: 1h}}
`

func TestAllowTakesAndDenies(t *testing.T) {
	inBubble(t, limits, func(b bench) {
		b.post("/v1/allow", `{"limiter":"api","key":"ann"}`, 200,
			`{"limiter":"api","key":"ann","allowed":true,"granted":1,"remaining":19,"retry_after_ms":0,"reset_after_ms":100,"limit":"10/1s burst 20","at":"2000-01-01T00:00:00Z","source":"database"}`)
		w := b.post("/v1/allow", `{"limiter":"login","key":"a<b","tokens":2}`, 200,
			`{"limiter":"login","key":"a<b","allowed":true,"granted":2,"remaining":0,"retry_after_ms":60000,"reset_after_ms":60000,"limit":"2/1m","at":"2000-01-01T00:00:00Z","source":"database"}`)
		if after := w.Header().Values("Retry-After"); after != nil {
			b.Errorf("a grant has Retry-After %q", after)
		}
		time.Sleep(500 * time.Microsecond)
		denied := `{"limiter":"login","key":"a<b","allowed":false,"granted":0,"remaining":0,"retry_after_ms":30000,"reset_after_ms":60000,"limit":"2/1m","at":"2000-01-01T00:00:00.0005Z","source":"%s"}`
		for status, path := range map[int]string{200: "/v1/allow", 429: "/v1/allow?denied=429"} {
			w := b.answers(request(http.MethodPost, path, `{"limiter":"login","key":"a<b"}`))
			got := strings.TrimSpace(w.Body.String())
			if w.Code != status || got != fmt.Sprintf(denied, "database") && got != fmt.Sprintf(denied, "memory") {
				b.Errorf("%s: %d %s", path, w.Code, got)
			}
			if after := w.Header().Get("Retry-After"); after != "30" {
				b.Errorf("%s: Retry-After %q", path, after)
			}
		}
		b.post("/v1/allow", `{"limiter":"login","key":"plan","limit":"3/1s","tokens":3}`, 200,
			`{"limiter":"login","key":"plan","allowed":true,"granted":3,"remaining":0,"retry_after_ms":1001,"reset_after_ms":1001,"limit":"3/1s","at":"2000-01-01T00:00:00.0005Z","source":"database"}`)
	})
}

func TestPeekTakesNothing(t *testing.T) {
	inBubble(t, limits, func(b bench) {
		for range 2 {
			b.post("/v1/peek", `{"limiter":"login","key":"ann","tokens":2}`, 200,
				`{"limiter":"login","key":"ann","allowed":true,"granted":0,"remaining":2,"retry_after_ms":0,"reset_after_ms":0,"limit":"2/1m","at":"2000-01-01T00:00:00Z","source":"database"}`)
		}
		b.post("/v1/peek", `{"requests":[{"limiter":"login","key":"ann"}]}`, 200,
			`{"decisions":[{"limiter":"login","key":"ann","allowed":true,"granted":0,"remaining":2,"retry_after_ms":0,"reset_after_ms":0,"limit":"2/1m","at":"2000-01-01T00:00:00Z","source":"database"}]}`)
	})
}

func TestAnIDIsChargedOnce(t *testing.T) {
	inBubble(t, limits, func(b bench) {
		for range 2 {
			b.post("/v1/allow", `{"limiter":"login","key":"ann","id":"first"}`, 200,
				`{"limiter":"login","key":"ann","allowed":true,"granted":1,"remaining":1,"retry_after_ms":0,"reset_after_ms":30000,"limit":"2/1m","at":"2000-01-01T00:00:00Z","source":"database"}`)
		}
		w := b.answers(request(http.MethodPost, "/v1/allow", `{"limiter":"login","key":"ann","id":"first","tokens":2}`))
		isProblem(b.T, w, 400, "id", "an ID of its own")
	})
}

func TestWaitsForTheTokensOrDeniesAtOnce(t *testing.T) {
	inBubble(t, limits, func(b bench) {
		b.answers(request(http.MethodPost, "/v1/allow", `{"limiter":"login","key":"ann","tokens":2}`))
		begin := time.Now()
		b.post("/v1/allow", `{"limiter":"login","key":"ann","wait_ms":29000}`, 200,
			`{"limiter":"login","key":"ann","allowed":false,"granted":0,"remaining":0,"retry_after_ms":30000,"reset_after_ms":60000,"limit":"2/1m","at":"2000-01-01T00:00:00Z","source":"database"}`)
		if waited := time.Since(begin); waited != 0 {
			b.Errorf("a wait that is too long takes %v", waited)
		}
		w := b.answers(request(http.MethodPost, "/v1/allow", `{"limiter":"login","key":"ann","wait_ms":31000}`))
		if waited := time.Since(begin); w.Code != 200 || !strings.Contains(w.Body.String(), `"allowed":true`) || !strings.Contains(w.Body.String(), `"waited_ms":30000`) ||
			waited < 30*time.Second || waited > 31*time.Second {
			b.Errorf("after %v: %d %s", waited, w.Code, w.Body)
		}
	})
}

func TestSeveralAreAllOrNothing(t *testing.T) {
	inBubble(t, limits, func(b bench) {
		both := `{"requests":[{"limiter":"login","key":"ann"},{"limiter":"api","key":"ann","tokens":20}],"all":true}`
		b.post("/v1/allow", both, 200, `{"allowed":true,"retry_after_ms":2000,"decisions":[`+
			`{"limiter":"login","key":"ann","allowed":true,"granted":1,"remaining":1,"retry_after_ms":0,"reset_after_ms":30000,"limit":"2/1m","at":"2000-01-01T00:00:00Z","source":"database"},`+
			`{"limiter":"api","key":"ann","allowed":true,"granted":20,"remaining":0,"retry_after_ms":2000,"reset_after_ms":2000,"limit":"10/1s burst 20","at":"2000-01-01T00:00:00Z","source":"database"}]}`)
		w := b.answers(request(http.MethodPost, "/v1/allow?denied=429", both))
		if w.Code != 429 || !strings.HasPrefix(w.Body.String(), `{"allowed":false,"retry_after_ms":2000,`) || w.Header().Get("Retry-After") != "2" {
			b.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
		}
		b.post("/v1/peek", `{"limiter":"login","key":"ann"}`, 200,
			`{"limiter":"login","key":"ann","allowed":true,"granted":0,"remaining":1,"retry_after_ms":0,"reset_after_ms":30000,"limit":"2/1m","at":"2000-01-01T00:00:00Z","source":"database"}`)
	})
}

func TestSeveralAreDecidedEachByItself(t *testing.T) {
	inBubble(t, limits, func(b bench) {
		b.post("/v1/allow", `{"requests":[{"limiter":"login","key":"ann","tokens":2},{"limiter":"api","key":"ann"},{"limiter":"login","key":"ann"}]}`, 200, `{"decisions":[`+
			`{"limiter":"login","key":"ann","allowed":true,"granted":2,"remaining":0,"retry_after_ms":60000,"reset_after_ms":60000,"limit":"2/1m","at":"2000-01-01T00:00:00Z","source":"database"},`+
			`{"limiter":"api","key":"ann","allowed":true,"granted":1,"remaining":19,"retry_after_ms":0,"reset_after_ms":100,"limit":"10/1s burst 20","at":"2000-01-01T00:00:00Z","source":"database"},`+
			`{"limiter":"login","key":"ann","allowed":false,"granted":0,"remaining":0,"retry_after_ms":30000,"reset_after_ms":60000,"limit":"2/1m","at":"2000-01-01T00:00:00Z","source":"database"}]}`)
	})
}

// Times are rounded up: whole ones stay as they are, and Retry-After is a second at least.
func TestTimesAreRoundedUp(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration][2]int64{
		0: {0, 1}, 1: {1, 1}, time.Millisecond: {1, 1}, time.Millisecond + 1: {2, 1},
		time.Second: {1000, 1}, time.Second + 1: {1001, 2}, 2 * time.Second: {2000, 2},
	} {
		if got := [2]int64{milliseconds(d), seconds(d)}; got != want {
			t.Errorf("%v: %v, want %v", d, got, want)
		}
	}
}

// Half a surrogate pair is refused, and what only looks like one is not.
func TestUnicodeKeysStayApart(t *testing.T) {
	t.Parallel()
	s := newServer(t, limits, pglimittest.Memory())
	for key, want := range map[string]string{
		`ключ😀`:              `ключ😀`,
		`\ud83d\uDE00`:       `😀`,
		"\uFFFD":             "\uFFFD",
		`\ufffd\ud83d\ude00`: "\uFFFD😀",
		`\\ud800`:            `\\ud800`,
		`\\\ufffd\\ud800`:    `\\` + "\uFFFD" + `\\ud800`,
	} {
		w := s.answers(request(http.MethodPost, "/v1/allow", `{"limiter":"api","key":"`+key+`"}`))
		if w.Code != 200 || !strings.Contains(w.Body.String(), `"key":"`+want+`"`) {
			t.Errorf("%s: %d %s", key, w.Code, w.Body)
		}
	}
}

// heard tells of the groups that it is asked for.
type heard struct {
	*pglimittest.Strategy
	groups *[][]rate.Request
}

func (h heard) Take(ctx context.Context, session pglimit.Session, requests []rate.Request) ([]pglimit.Decision, error) {
	*h.groups = append(*h.groups, slices.Clone(requests))
	return h.Strategy.Take(ctx, session, requests)
}

// The limiter that asks for a group is the first one's; each bucket keeps the durability of its own.
func TestOfSeveralEachKeepsItsDurability(t *testing.T) {
	t.Parallel()
	made, err := parse([]byte("limiters: {hard: {limit: 1/s, durability: durable}, soft: {limit: 2/s}}"))
	must(t, err)
	memory := heard{pglimittest.Memory(), new([][]rate.Request)}
	made[0].Strategy, made[1].Strategy = memory, memory
	s, err := New(Config{Limits: made, Pool: memory.Pool()})
	must(t, err)
	s.answers(request(http.MethodPost, "/v1/allow", `{"requests":[{"limiter":"soft","key":"a"},{"limiter":"hard","key":"a"}],"all":true}`))
	groups := *memory.groups
	if len(groups) != 1 || groups[0][0].Durability != pglimit.Relaxed || groups[0][1].Durability != pglimit.Durable || groups[0][1].Limit != pglimit.PerSecond(1) {
		t.Errorf("%+v", groups)
	}
}

// How long somebody would wait for tokens says nothing about how long Postgres may take.
func TestShortWaitIsGrantedWhatIsThere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, _ := laggingServer(t, limits, 20*time.Millisecond)
		s.post("/v1/allow", `{"limiter":"login","key":"ann","tokens":2,"wait_ms":1}`, 200,
			`{"limiter":"login","key":"ann","allowed":true,"granted":2,"remaining":0,"retry_after_ms":60000,"reset_after_ms":60000,"limit":"2/1m","at":"2000-01-01T00:00:00.02Z","source":"database"}`)
		// Seen a lag after the grant, a token is due in 29.98 s.
		for wait, want := range map[string]string{"29979": `"allowed":false`, "29980": `"waited_ms":29980,`} {
			s.answers(request(http.MethodPost, "/v1/allow", `{"limiter":"login","key":"of `+wait+`","tokens":2}`))
			w := s.answers(request(http.MethodPost, "/v1/allow", `{"limiter":"login","key":"of `+wait+`","wait_ms":`+wait+`}`))
			if w.Code != 200 || !strings.Contains(w.Body.String(), want) {
				t.Errorf("%s ms: %d %s, not %s", wait, w.Code, w.Body, want)
			}
		}
	})
}

// A group that is denied from memory says nothing of the buckets that were not looked at.
func TestGroupFromMemoryTellsOnlyWhatItKnows(t *testing.T) {
	inBubble(t, limits, func(b bench) {
		b.answers(request(http.MethodPost, "/v1/allow", `{"limiter":"login","key":"k","tokens":2}`))
		const group = `{"requests":[{"limiter":"api","key":"k"},{"limiter":"login","key":"k"}],"all":true}`
		b.post("/v1/allow", group, 200, `{"allowed":false,"retry_after_ms":30000,"decisions":[`+
			`{"limiter":"api","key":"k","allowed":true,"granted":0,"remaining":20,"retry_after_ms":0,"reset_after_ms":0,"limit":"10/1s burst 20","at":"2000-01-01T00:00:00Z","source":"database"},`+
			`{"limiter":"login","key":"k","allowed":false,"granted":0,"remaining":0,"retry_after_ms":30000,"reset_after_ms":60000,"limit":"2/1m","at":"2000-01-01T00:00:00Z","source":"database"}]}`)
		b.post("/v1/allow", group, 200, `{"allowed":false,"retry_after_ms":30000,"decisions":[`+
			`{"limiter":"api","key":"k","allowed":true,"granted":0,"retry_after_ms":0,"limit":"10/1s burst 20","at":"2000-01-01T00:00:00Z","source":"memory"},`+
			`{"limiter":"login","key":"k","allowed":false,"granted":0,"remaining":0,"retry_after_ms":30000,"reset_after_ms":60000,"limit":"2/1m","at":"2000-01-01T00:00:00Z","source":"memory"}]}`)
	})
}
