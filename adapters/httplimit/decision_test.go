package httplimit_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pglimit/ratelimit/adapters/httplimit"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
)

// A handler charges what the request cost: of both limits in one round trip, and not of the one outside.
func TestAHandlerSettles(t *testing.T) {
	t.Parallel()
	memory := pglimittest.Memory()
	outer := newLimiter(t, memory, pglimit.Config{Name: "address", Limit: pglimit.PerHour(5)})
	limiter := newLimiter(t, memory, pglimit.Config{Name: "tokens", Limit: pglimit.PerHour(100)})
	config := everybody
	config.Cost = func(*http.Request) int64 { return 50 } // an estimate
	config.Requests = func(_ *http.Request, key string) []pglimit.Request {
		return []pglimit.Request{{Key: key}, {Key: "org:7"}}
	}
	handler := httplimit.New(outer, everybody)(httplimit.New(limiter, config)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		all := httplimit.Decisions(r.Context())
		nearest, ok := httplimit.Decision(r.Context())
		if len(all) != 3 || !ok || nearest != all[1] || all[0].Limiter != "address" || all[2].Key != "org:7" || nearest.Granted != 50 {
			t.Errorf("%+v; %+v", nearest, all)
			return
		}
		charged, err := httplimit.Settle(r.Context(), 20)
		_, _ = fmt.Fprint(w, charged.Granted, err)
		all[1].Key = "another" // the caller's own
		if again, _ := httplimit.Decision(r.Context()); again != nearest {
			t.Errorf("%+v", again)
		}
	})))
	if got := get(t, served(t, handler)); got.body != "20 <nil>" {
		t.Error(got.body)
	}
	for key, want := range map[string]int64{"all": 80, "org:7": 80} {
		if d, err := limiter.Peek(t.Context(), key); err != nil || d.Remaining != want {
			t.Errorf("%s: %+v, %v", key, d, err)
		}
	}
	if n := left(t, outer); n != 4 {
		t.Errorf("%d left of the limit outside, want 4", n)
	}
}

// Whatever Refund says, a request that its handler has settled is not given back again: also if the client has gone, if
// the handler panics, and if what it asked was nonsense. A limit outside gives back its own.
func TestASettledRequestIsNotRefunded(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		settle []int64 // each time
		last   string  // error
		left   int64   // of ten, of which five were taken
	}{
		"nothing":           {nil, "<nil>", 10},
		"less":              {[]int64{3}, "<nil>", 7},
		"more":              {[]int64{6}, "<nil>", 4},
		"twice":             {[]int64{3, 3}, "settled before", 7},
		"less than nothing": {[]int64{-1}, "httplimit: pglimit: Request.Tokens", 5},
	} {
		for _, panics := range []bool{false, true} {
			outer, limiter := limited(t, pglimit.PerHour(10)), limited(t, pglimit.PerHour(10))
			config := everybody
			config.Refund = func(*http.Request, int) bool { return true }
			inner := config
			inner.Cost = func(*http.Request) int64 { return 5 }
			handler := httplimit.New(outer, config)(httplimit.New(limiter, inner)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				gone, leave := context.WithCancel(r.Context())
				leave()
				var last error
				for _, actual := range c.settle {
					_, last = httplimit.Settle(gone, actual)
				}
				if !strings.Contains(fmt.Sprint(last), c.last) {
					t.Errorf("%s: %v", name, last)
				}
				if panics {
					panic(http.ErrAbortHandler)
				}
			})))
			func() {
				defer func() { _ = recover() }()
				handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", http.NoBody))
			}()
			if n, outside := left(t, limiter), left(t, outer); n != c.left || outside != 10 {
				t.Errorf("%s, panics %v: %d left, want %d; and %d outside", name, panics, n, c.left, outside)
			}
		}
	}
}

// A request that was skipped has no decision, one that a fallback let through has that.
func TestDecisionsOfOtherRequests(t *testing.T) {
	t.Parallel()
	memory, seen := pglimittest.Memory(), ""
	config := everybody
	config.Skip = func(r *http.Request) bool { return r.URL.Path == "/skipped" }
	limiter := newLimiter(t, memory, pglimit.Config{Limit: pglimit.PerHour(5), OnError: pglimit.FailOpen})
	handler := httplimit.New(limiter, config)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		d, ok := httplimit.Decision(r.Context())
		charged, err := httplimit.Settle(r.Context(), 3) // nothing was taken
		seen = fmt.Sprint(ok, d.Source, len(httplimit.Decisions(r.Context())), charged.Granted, err)
	}))
	memory.Fail(pglimit.ErrUnavailable)
	for path, want := range map[string]string{"/skipped": "false database 0 0 <nil>", "/": "true fallback 1 0 <nil>"} {
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, path, http.NoBody))
		if seen != want {
			t.Errorf("%s: %s, want %s", path, seen, want)
		}
	}
}

// A middleware outside names a request by the pattern that a mux inside has matched.
func TestThePatternIsSeenOutside(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	mux.Handle("GET /users/{id}", fine)
	request := httptest.NewRequest(http.MethodGet, "/users/7", http.NoBody)
	httplimit.New(limited(t, pglimit.PerHour(1)), everybody)(mux).ServeHTTP(httptest.NewRecorder(), request)
	if request.Pattern != "GET /users/{id}" {
		t.Errorf("%q", request.Pattern)
	}
}
