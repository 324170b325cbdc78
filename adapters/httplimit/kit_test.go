package httplimit_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/dunglas/httpsfv"

	"github.com/pglimit/ratelimit/adapters/httplimit"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
)

// everybody has one bucket.
var everybody = httplimit.Config{Key: httplimit.Constant("all")}

func newLimiter(t testing.TB, memory *pglimittest.Strategy, config pglimit.Config) *pglimit.Limiter {
	t.Helper()
	if config.Name == "" {
		config.Name = "api"
	}
	limiter, err := pglimittest.New(memory, config)
	must(t, err)
	return limiter
}

// limited is a limiter in memory with that limit.
func limited(t testing.TB, limit pglimit.Limit) *pglimit.Limiter {
	t.Helper()
	return newLimiter(t, pglimittest.Memory(), pglimit.Config{Limit: limit})
}

// fine answers with 200, or the status that the client asks for.
var fine = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	status := http.StatusOK
	_, _ = fmt.Sscan(r.URL.Query().Get("status"), &status)
	w.WriteHeader(status)
	_, _ = io.WriteString(w, "fine")
})

// served starts a server of the handler, and returns its URL.
func served(t testing.TB, handler http.Handler) string {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL
}

// reply is a response that was read.
type reply struct {
	*http.Response
	body string
}

func get(t testing.TB, url string, header ...string) reply {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	must(t, err)
	for i := 0; i < len(header); i += 2 {
		request.Header.Add(header[i], header[i+1])
	}
	response, err := http.DefaultClient.Do(request)
	must(t, err)
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	must(t, err)
	return reply{response, string(body)}
}

// expect a status and fields of the header; "" is one that must not be there.
func (r reply) expect(t testing.TB, status int, fields ...string) {
	t.Helper()
	if r.StatusCode != status {
		t.Errorf("the status is %s, want %d: %s", r.Status, status, r.body)
	}
	for i := 0; i < len(fields); i += 2 {
		if got := r.Header.Values(fields[i]); fmt.Sprint(got) != fmt.Sprintf("[%s]", fields[i+1]) || len(got) > 1 {
			t.Errorf("%s is %q, want %q", fields[i], got, fields[i+1])
		}
	}
}

// problem that the body tells, by a reader that knows only RFC 9457.
type problem struct {
	Type     string
	Title    string
	Status   int
	Detail   string
	Violated []string `json:"violated-policies"`
}

func (r reply) problem(t testing.TB) problem {
	t.Helper()
	var p problem
	if err := json.Unmarshal([]byte(r.body), &p); err != nil {
		t.Fatalf("%v: %s", err, r.body)
	}
	if kind := r.Header.Get("Content-Type"); kind != "application/problem+json" || p.Status != r.StatusCode || p.Title == "" || p.Detail == "" || p.Type == "" {
		t.Errorf("%s, %+v", kind, p)
	}
	if cache := r.Header.Get("Cache-Control"); cache != "no-store" {
		t.Errorf("Cache-Control is %q", cache)
	}
	return p
}

// item of a list of RateLimit or RateLimit-Policy.
type item struct {
	name       string
	parameters map[string]int64
}

// list that a field holds, by a parser that knows only RFC 9651.
func list(t testing.TB, lines []string) []item {
	t.Helper()
	parsed, err := httpsfv.UnmarshalList(lines)
	if err != nil {
		t.Fatalf("%q: %v", lines, err)
	}
	var items []item
	for _, member := range parsed {
		one := member.(httpsfv.Item)
		it := item{one.Value.(string), map[string]int64{}}
		for _, name := range one.Params.Names() {
			value, _ := one.Params.Get(name)
			it.parameters[name] = value.(int64)
		}
		items = append(items, it)
	}
	return items
}

// logged is a logger that a test can read.
type logged struct {
	mutex sync.Mutex
	text  bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.text.Write(b)
}

func (l *logged) String() string {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.text.String()
}

func (l *logged) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
