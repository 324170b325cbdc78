package httplimit_test

import (
	"context"
	"errors"
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

// Whatever Refund says, a request that its handler has settled is not given back again: also if it panics, and also if
// what the handler asked was nonsense. A limit outside gives back its own.
func TestASettledRequestIsNotRefunded(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		settle func(ctx context.Context) error
		want   int64 // left of ten
	}{
		"nothing": {func(context.Context) error { return nil }, 10},
		"less": {func(ctx context.Context) error {
			_, err := httplimit.Settle(ctx, 3)
			return err
		}, 7},
		"more, and the client has gone": {func(ctx context.Context) error {
			ctx, cancel := context.WithCancel(ctx)
			cancel()
			_, err := httplimit.Settle(ctx, 6)
			return err
		}, 4},
		"twice": {func(ctx context.Context) error {
			_, err := httplimit.Settle(ctx, 3)
			if _, again := httplimit.Settle(ctx, 3); again == nil || !strings.Contains(again.Error(), "settled before") {
				t.Error(again)
			}
			return err
		}, 7},
		"less than nothing": {func(ctx context.Context) error {
			if _, err := httplimit.Settle(ctx, -1); !errors.As(err, new(*pglimit.RequestError)) {
				return fmt.Errorf("it is no error: %w", err)
			}
			return nil
		}, 5},
	} {
		for _, panics := range []bool{false, true} {
			memory := pglimittest.Memory()
			outer := newLimiter(t, memory, pglimit.Config{Name: "address", Limit: pglimit.PerHour(10)})
			limiter := newLimiter(t, memory, pglimit.Config{Name: "api", Limit: pglimit.PerHour(10)})
			config := everybody
			config.Refund = func(*http.Request, int) bool { return true }
			inner := config
			inner.Cost = func(*http.Request) int64 { return 5 }
			handler := httplimit.New(outer, config)(httplimit.New(limiter, inner)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if err := test.settle(r.Context()); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				if panics {
					panic(http.ErrAbortHandler)
				}
			})))
			func() {
				defer func() { _ = recover() }()
				handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", http.NoBody))
			}()
			if n, outside := left(t, limiter), left(t, outer); n != test.want || outside != 10 {
				t.Errorf("%s, panics %v: %d left, want %d; and %d outside", name, panics, n, test.want, outside)
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
