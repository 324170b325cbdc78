package serve

import (
	"context"
	"encoding/base64"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

const fallbacks = `
limiters:
  closed: {limit: 10/s, on_error: closed}
  open: {limit: 10/s, on_error: open}
  local: {limit: 10/s, on_error: local, instances: 5}
`

func TestNoDecisionIsKnown(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		err    error
		status int
		cause  string
	}{
		{pglimit.ErrUnavailable, 503, "unavailable"},
		{context.DeadlineExceeded, 503, "timeout"},
		{pglimit.ErrNothingTaken, 503, "refused"},
		{pglimit.ErrNotMigrated, 500, "not_migrated"},
		{pglimit.ErrPermission, 500, "permission"},
		{pglimit.ErrSetting, 500, "setting"},
		{pglimit.ErrPooler, 500, "pooler"},
		{io.ErrUnexpectedEOF, 500, "other"},
	} {
		for path, body := range map[string]string{
			"/v1/allow":  `{"limiter":"api","key":"k"}`,
			"/v1/peek":   `{"requests":[{"limiter":"api","key":"k"}]}`,
			"/v1/reset":  `{"limiter":"api","key":"k"}`,
			"/v1/refund": `{"decision":{"limiter":"api","key":"k","granted":1,"limit":"1/s","at":"2000-01-01T00:00:00Z"},"tokens":1}`,
		} {
			memory := pglimittest.Memory()
			s := newServer(t, limits, memory) // a new one, whose circuit breaker is closed
			memory.Fail(test.err)
			w := s.answers(request(http.MethodPost, path, body))
			isProblem(t, w, test.status, "", "no decision is known")
			if !strings.Contains(w.Body.String(), `"cause":"`+test.cause+`"`) || (w.Header().Get("Retry-After") == "1") != (test.status == 503) {
				t.Errorf("%s, %v: %v %s", path, test.err, w.Header(), w.Body)
			}
		}
	}
}

func TestOnErrorAnswersInAnOutage(t *testing.T) {
	inBubble(t, fallbacks, func(b bench) {
		b.memory.Fail(pglimit.ErrUnavailable)
		for _, body := range []string{`{"limiter":"closed","key":"k"}`, `{"limiter":"closed","key":"k","wait_ms":1000}`} {
			w := b.post("/v1/allow", body, 200,
				`{"limiter":"closed","key":"k","allowed":false,"granted":0,"retry_after_ms":1000,"limit":"10/1s","source":"fallback"}`)
			if w.Header().Get("Retry-After") != "1" {
				b.Errorf("%v", w.Header())
			}
		}
		b.post("/v1/allow", `{"limiter":"open","key":"k"}`, 200,
			`{"limiter":"open","key":"k","allowed":true,"granted":1,"retry_after_ms":0,"limit":"10/1s","source":"fallback"}`)
		for i, want := range []string{ // two are its share
			`"allowed":true,"granted":1,"remaining":1,"retry_after_ms":0,"reset_after_ms":500,`,
			`"allowed":true,"granted":1,"remaining":0,"retry_after_ms":500,"reset_after_ms":1000,`,
			`"allowed":false,"granted":0,"remaining":0,"retry_after_ms":500,"reset_after_ms":1000,`,
		} {
			if w := b.answers(request(http.MethodPost, "/v1/allow", `{"limiter":"local","key":"k"}`)); !strings.Contains(w.Body.String(), want) {
				b.Errorf("request %d: %s", i, w.Body)
			}
		}
	})
}

func TestReadyWhileItCanDecide(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		yaml   string
		err    error
		status int
		body   string
	}{
		{fallbacks, nil, 200, `{"status":"ready"}`},
		{fallbacks, pglimit.ErrUnavailable, 200, `{"degraded":"Postgres cannot be reached","status":"ready"}`},
		{fallbacks, pglimit.ErrReadOnly, 200, `{"degraded":"this Postgres is read-only`},
		{fallbacks + "  plain: {limit: 1/s}", pglimit.ErrReadOnly, 503, "not ready: this Postgres is read-only"},
		{fallbacks, pglimit.ErrNotMigrated, 503, `"cause":"not_migrated"`},
		{fallbacks + "  plain: {limit: 1/s}", pglimit.ErrUnavailable, 503, `"cause":"unavailable"`},
		{fallbacks + "  plain: {limit: 1/s}", nil, 200, `{"status":"ready"}`},
	} {
		memory := pglimittest.Memory()
		s := newServer(t, test.yaml, memory)
		memory.Fail(test.err)
		if w := s.answers(request(http.MethodGet, "/readyz", "")); w.Code != test.status || !strings.Contains(w.Body.String(), test.body) {
			t.Errorf("%v: %d %s, not %d %s", test.err, w.Code, w.Body, test.status, test.body)
		}
		if w := s.answers(request(http.MethodGet, "/healthz", "")); w.Code != 200 {
			t.Errorf("%v: the process is not healthy: %s", test.err, w.Body)
		}
	}
}

func TestTokensOpenV1AndNothingElseNeedsOne(t *testing.T) {
	t.Parallel()
	s := newServer(t, limits, pglimittest.Memory(), "first-0123456789abcdef", "second-0123456789abcdef")
	for header, status := range map[string]int{
		"":                               401,
		"Bearer":                         401,
		"Bearer ":                        401,
		"Bearer wrong":                   401,
		"Basic first-0123456789abcdef":   401,
		"first-0123456789abcdef":         401,
		"Bearer first-0123456789abcde":   401,
		"Bearer first-0123456789abcdef":  200,
		"bearer second-0123456789abcdef": 200,
		"Basic " + base64.StdEncoding.EncodeToString([]byte("ann:second-0123456789abcdef")): 200,
		"Basic " + base64.StdEncoding.EncodeToString([]byte("second-0123456789abcdef:ann")): 401,
	} {
		for _, path := range []string{"/v1/allow", "/v1/peek", "/v1/reset"} {
			r := request(http.MethodPost, path, `{"limiter":"api","key":"k"}`)
			if header != "" {
				r.Header.Set("Authorization", header)
			}
			w := s.answers(r)
			if w.Code != status || (len(w.Header().Values("WWW-Authenticate")) == 2) != (status == 401) {
				t.Errorf("%s with %q: %d %v %s", path, header, w.Code, w.Header(), w.Body)
			}
		}
	}
	for _, path := range []string{"/v1/refund", "/v1/settle"} {
		isProblem(t, s.answers(request(http.MethodPost, path, `{}`)), 401, "", "--token-file")
	}
	for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
		if w := s.answers(request(http.MethodGet, path, "")); w.Code != 200 {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
}

// A web page whose name leads to this machine must not decide, and need not be told apart where
// there are tokens, or where others are to reach the server anyway.
func TestOnlyLocalNamesReachALocalServer(t *testing.T) {
	t.Parallel()
	const token = "0123456789abcdef"
	local, guarded := newServer(t, limits, pglimittest.Memory()), newServer(t, limits, pglimittest.Memory(), token)
	local.loopback, guarded.loopback = true, true
	for host, status := range map[string]int{
		"127.0.0.1:8080": 200, "127.0.0.1": 200, "[::1]:8080": 200, "[::1]": 200, "localhost:8080": 200, "LocalHost": 200,
		"evil.example:8080": 403, "evil.example": 403, "localhost.evil.example": 403, "127.0.0.1.evil.example:8080": 403, "": 403,
	} {
		r := request(http.MethodPost, "/v1/allow", `{"limiter":"api","key":"k"}`)
		r.Host = host
		w := local.answers(r)
		if w.Code != status {
			t.Errorf("%q: %d %s", host, w.Code, w.Body)
		}
		if status == 403 {
			isProblem(t, w, 403, "", "--token-file", "localhost")
		}
		for _, s := range []*Server{guarded, newServer(t, limits, pglimittest.Memory())} {
			r := request(http.MethodPost, "/v1/allow", `{"limiter":"api","key":"k"}`)
			r.Host = host
			r.Header.Set("Authorization", "Bearer "+token)
			if w := s.answers(r); w.Code != 200 {
				t.Errorf("%q: %d %s", host, w.Code, w.Body)
			}
		}
	}
	must(t, local.Reload(local.config.Limits, nil))
	w, r := httptest.NewRecorder(), request(http.MethodPost, "/v1/allow", `{"limiter":"api","key":"k"}`)
	r.Host = "evil.example" // also after the files were read again
	local.ServeHTTP(w, r)
	isProblem(t, w, 403, "", "localhost")
}

func TestOtherRequestsAreRefused(t *testing.T) {
	t.Parallel()
	s := newServer(t, limits, pglimittest.Memory())
	isProblem(t, s.answers(request(http.MethodGet, "/v2/allow", "")), 404, "", "/v1/allow")
	w := s.answers(request(http.MethodGet, "/v1/allow", ""))
	isProblem(t, w, 405, "", "takes POST")
	if w.Header().Get("Allow") != "POST" {
		t.Errorf("%v", w.Header())
	}
	isProblem(t, s.answers(request(http.MethodPost, "/v1/allow", `"`+strings.Repeat("x", maxBody)+`"`)), 413, "", "1048576 bytes")
	for _, kind := range []string{"", "text/plain", "application/x-www-form-urlencoded", "application/jsonx"} {
		r := request(http.MethodPost, "/v1/allow", `{"limiter":"api","key":"k"}`)
		r.Header.Set("Content-Type", kind)
		isProblem(t, s.answers(r), 415, "", "application/json")
	}
}

func TestMetricsCountAndTellNoKey(t *testing.T) {
	t.Parallel()
	s := newServer(t, limits, pglimittest.Memory())
	for _, body := range []string{`{"limiter":"login","key":"secret","tokens":2}`, `{"limiter":"login","key":"secret"}`, `{"limiter":"nosuch","key":"secret"}`} {
		s.answers(request(http.MethodPost, "/v1/allow", body))
	}
	text := s.answers(request(http.MethodGet, "/metrics", "")).Body.String()
	for _, line := range []string{
		`pglimit_allowed_total{limiter="login",source="database",strategy="memory"} 1`,
		`pglimit_denied_total{limiter="login",source="database",strategy="memory"} 1`,
		`pglimit_round_trip_duration_seconds_count{limiter="login",operation="take",outcome="ok",strategy="memory"} 2`,
		`http_request_duration_seconds_count{code="200",handler="/v1/allow"} 2`,
		`http_request_duration_seconds_count{code="404",handler="/v1/allow"} 1`,
		`go_goroutines `, `process_open_fds `,
	} {
		if !strings.Contains(text, line) {
			t.Errorf("there is no %s", line)
		}
	}
	if strings.Contains(text, "secret") {
		t.Error("a key is among the metrics")
	}
}

// lagging counts the calls that take tokens or peek, and each takes a while.
type lagging struct {
	*pglimittest.Strategy
	lag   time.Duration
	calls *atomic.Int64
}

func (l lagging) Take(ctx context.Context, session pglimit.Session, requests []rate.Request) ([]pglimit.Decision, error) {
	l.calls.Add(1)
	select {
	case <-time.After(l.lag):
	case <-ctx.Done():
	}
	return l.Strategy.Take(ctx, session, requests)
}

func laggingServer(t *testing.T, yaml string, lag time.Duration) (bench, *atomic.Int64) {
	t.Helper()
	made, err := parse([]byte(yaml))
	must(t, err)
	slow := lagging{pglimittest.MemoryOn(time.Now), lag, new(atomic.Int64)}
	for i := range made {
		made[i].Strategy = slow
	}
	s, err := New(Config{Limits: made, Pool: slow.Pool()})
	must(t, err)
	return bench{t, s, slow.Strategy}, slow.calls
}

// Who probes without end takes one connection from the decisions, also if nobody waits for the answer.
func TestProbesShareOneCheck(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, calls := laggingServer(t, limits, 100*time.Millisecond)
		probeAll := func() {
			var probes sync.WaitGroup
			for range 10 {
				probes.Go(func() {
					ctx, leave := context.WithCancel(t.Context())
					leave()
					w := s.answers(request(http.MethodGet, "/readyz", "").WithContext(ctx))
					if w.Code != 200 {
						t.Errorf("%d %s", w.Code, w.Body)
					}
				})
			}
			probes.Wait()
		}
		for checks := range int64(2) {
			probeAll()
			time.Sleep(readyFor)
			probeAll()
			if calls.Load() != checks+1 {
				t.Errorf("%d checks, not %d", calls.Load(), checks+1)
			}
			time.Sleep(time.Nanosecond)
		}
	})
}
