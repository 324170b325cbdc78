package serve

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit/pglimittest"
)

// bench is a server that decides in memory, inside a bubble of synctest: all clocks are one, and
// begin at midnight, January 1, 2000.
type bench struct {
	*testing.T
	*Server
	memory *pglimittest.Strategy
}

func inBubble(t *testing.T, yaml string, test func(b bench)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		memory := pglimittest.MemoryOn(time.Now)
		test(bench{t, newServer(t, yaml, memory), memory})
	})
}

// newServer has the tokens of these lines of a file.
func newServer(t *testing.T, yaml string, memory *pglimittest.Strategy, lines ...string) *Server {
	t.Helper()
	var tokens []Token
	for _, line := range lines {
		token, err := parseToken(strings.Fields(line))
		must(t, err)
		tokens = append(tokens, token)
	}
	limits, err := parse([]byte(yaml))
	must(t, err)
	for i := range limits {
		if limits[i].Strategy.Name() == "token_bucket" {
			limits[i].Strategy = memory
		}
	}
	s, err := New(Config{Limits: limits, Pool: memory.Pool(), Tokens: tokens, Gateway: Gateway{"X-Pglimit-Limiter", "X-Pglimit-Key"}, Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	t.Cleanup(func() {
		if err := s.Close(t.Context()); err != nil && t.Context().Err() == nil {
			t.Error(err)
		}
	})
	return s
}

func request(method, path, body string) *http.Request {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/json; charset=utf-8")
	}
	return r
}

func (s *Server) answers(r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, r)
	return w
}

// post expects the status and the whole body.
func (b bench) post(path, body string, status int, want string) *httptest.ResponseRecorder {
	b.Helper()
	w := b.answers(request(http.MethodPost, path, body))
	if got := strings.TrimSpace(w.Body.String()); w.Code != status || got != want {
		b.Errorf("%s %s\n%d %s, not\n%d %s", path, body, w.Code, got, status, want)
	}
	return w
}

// is a problem about the field, with these words in it.
func isProblem(t *testing.T, w *httptest.ResponseRecorder, status int, field string, words ...string) {
	t.Helper()
	var p problem
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
		t.Fatalf("%v: %s", err, w.Body)
	}
	if w.Code != status || p.Status != status || p.Title != http.StatusText(status) || p.Field != field ||
		w.Header().Get("Content-Type") != "application/problem+json" || w.Header().Get("Cache-Control") != "no-store" {
		t.Errorf("%d about %q is not %d about %q: %s %v", w.Code, p.Field, status, field, w.Body, w.Header())
	}
	if !strings.HasPrefix(p.Detail, field) {
		t.Errorf("%q does not begin with the field %q", p.Detail, field)
	}
	for _, word := range words {
		if !strings.Contains(p.Detail, word) {
			t.Errorf("%q does not say %q", p.Detail, word)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
