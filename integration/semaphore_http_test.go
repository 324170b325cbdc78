package integration

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/adapters/httplimit"
	"github.com/pglimit/ratelimit/semaphore"
)

// As many requests as there are places are served at once, and a place comes back however a request ends.
func TestMaxInFlight(t *testing.T) {
	t.Parallel()
	s := newSemaphore(t, newMigrated(t), semaphore.Config{Places: 1})
	inside, leave := make(chan struct{}), make(chan struct{})
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/panic":
			panic(http.ErrAbortHandler)
		case "/wait":
			inside <- struct{}{}
			select {
			case <-leave:
			case <-r.Context().Done():
			}
		}
		_, _ = io.WriteString(w, "fine")
	})
	server := httptest.NewServer(httplimit.MaxInFlight(s, httplimit.InFlight{Key: httplimit.Constant("all")})(handler))
	t.Cleanup(server.Close)
	get := func(ctx context.Context, path string) (status int, retryAfter string) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+path, http.NoBody)
		must(t, err)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return 0, "" // the handler panicked, or the client has gone
		}
		must(t, response.Body.Close())
		return response.StatusCode, response.Header.Get("Retry-After")
	}
	free := func() {
		t.Helper()
		// The request has been answered, or has gone, before Postgres has its place back.
		until(t, "it happens", func() bool {
			status, _ := get(t.Context(), "/")
			return status == http.StatusOK
		})
		until(t, "it happens", func() bool { return s.Stats().Held == 0 })
	}
	free() // at first
	go get(t.Context(), "/wait")
	<-inside
	if status, retryAfter := get(t.Context(), "/"); status != http.StatusServiceUnavailable || retryAfter != "1" {
		t.Errorf("one too many: %d, %q", status, retryAfter)
	}
	leave <- struct{}{}
	free() // after a request
	if status, _ := get(t.Context(), "/panic"); status != 0 {
		t.Errorf("got %d", status)
	}
	free() // after a panic
	ctx, hangUp := context.WithCancel(t.Context())
	go get(ctx, "/wait")
	<-inside
	hangUp()
	free() // after the client has hung up
}

// A request that waits is served when there is a place, and not later than it would wait.
func TestMaxInFlightInLine(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	hasty := newSemaphore(t, pool, semaphore.Config{Places: 1, MaxWait: time.Millisecond})
	patient := newSemaphore(t, pool, semaphore.Config{Places: 1})
	serve := func(s *semaphore.Semaphore) int {
		w := httptest.NewRecorder()
		httplimit.MaxInFlight(s, httplimit.InFlight{Key: httplimit.Constant("all"), Wait: true})(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})).
			ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", http.NoBody))
		return w.Code
	}
	p := acquire(t, hasty, "all")
	if code := serve(hasty); code != http.StatusServiceUnavailable {
		t.Errorf("got %d", code)
	}
	code := make(chan int)
	go func() { code <- serve(patient) }()
	until(t, "it happens", func() bool { return patient.Stats().Waiting == 1 })
	must(t, p.Release(t.Context()))
	if code := <-code; code != http.StatusOK {
		t.Errorf("got %d", code)
	}
}

// A request whose place is lost ends, and middlewares outside learn which pattern it has matched.
func TestMaxInFlightLosesAPlace(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	s := newSemaphore(t, pool, semaphore.Config{Places: 1, TTL: 2 * time.Second})
	mux := http.NewServeMux()
	mux.HandleFunc("GET /jobs/{id}", func(_ http.ResponseWriter, r *http.Request) {
		execute(t, pool, "delete from pglimit.permits")
		select {
		case <-r.Context().Done():
		case <-time.After(time.Minute):
		}
		if cause := context.Cause(r.Context()); !errors.Is(cause, semaphore.ErrLost) {
			t.Errorf("the request goes on, or has ended by %v", cause)
		}
	})
	r := httptest.NewRequest(http.MethodGet, "/jobs/7", http.NoBody)
	httplimit.MaxInFlight(s, httplimit.InFlight{Key: httplimit.Constant("all")})(mux).ServeHTTP(httptest.NewRecorder(), r)
	if r.Pattern != "GET /jobs/{id}" {
		t.Errorf("the pattern is %q", r.Pattern)
	}
}
