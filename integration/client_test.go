package integration

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/adapters/httplimit"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// Two processes call an API. When it tells one of them to wait, the other one sends nothing before that time.
func TestClientsPauseTogether(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	retryAfter, got := "", map[string]time.Time{} // what ann is told; when each was here last
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		got[r.URL.Path] = time.Now()
		if r.URL.Path == "/ann" {
			w.Header().Set("Retry-After", retryAfter)
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	defer api.Close()
	last := func(path string) time.Time {
		mu.Lock()
		defer mu.Unlock()
		return got[path]
	}
	tell := func(value string) {
		mu.Lock()
		defer mu.Unlock()
		retryAfter, got = value, map[string]time.Time{}
	}

	url := databaseURL(newMigrated(t))
	var log strings.Builder
	process := func() (func(path string, patience time.Duration) (int, error), *pglimit.Limiter) {
		limiter := newLimiter(t, newPool(t, url, 4), strategies.TokenBucket{}, pglimit.Config{Name: "outbound", Limit: pglimit.PerSecond(1000)})
		client := &http.Client{Transport: &httplimit.Transport{Limiter: limiter, Logger: slog.New(slog.NewTextHandler(&log, nil))}}
		return func(path string, patience time.Duration) (int, error) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, api.URL+path, http.NoBody)
			must(t, err)
			response, err := client.Do(request)
			if err != nil {
				return 0, err
			}
			return response.StatusCode, response.Body.Close()
		}, limiter
	}
	ann, limiter := process()
	bob, _ := process()
	// told lets ann be told to wait. On a busy machine a pause may fail, and is logged.
	told := func(value string) {
		t.Helper()
		until(t, "a pause is written", func() bool {
			must(t, limiter.Reset(t.Context(), "host:"+strings.TrimPrefix(api.URL, "http://")))
			tell(value)
			log.Reset()
			status, err := ann("/ann", time.Minute)
			if status != http.StatusTooManyRequests || err != nil {
				t.Fatal(status, err)
			}
			return log.Len() == 0
		})
	}

	told(time.Now().Add(2 * time.Hour).UTC().Format(http.TimeFormat)) // of which MaxPause leaves one
	for name, client := range map[string]func(string, time.Duration) (int, error){"/ann": ann, "/bob": bob} {
		before := last(name)
		if status, err := client(name, time.Minute); !errors.Is(err, pglimit.ErrWaitTooLong) || !strings.Contains(fmt.Sprint(err), "not sent") {
			t.Errorf("%s: %d, %v", name, status, err)
		}
		if !last(name).Equal(before) {
			t.Errorf("%s has sent a request", name)
		}
	}
	d, err := limiter.Peek(t.Context(), "host:"+strings.TrimPrefix(api.URL, "http://"))
	if err != nil || d.Allowed || d.RetryAfter > time.Hour+time.Minute { // a clock may be slow
		t.Errorf("%+v, %v", d, err)
	}

	told("1")
	bob, _ = process() // which does not remember that it was denied, for up to a second
	if status, err := bob("/bob", time.Minute); status != http.StatusOK || err != nil {
		t.Error(status, err)
	}
	if waited := last("/bob").Sub(last("/ann")); waited < time.Second {
		t.Errorf("bob has sent after %v", waited)
	}
}
