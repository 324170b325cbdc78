package promlimit_test

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/pglimit/ratelimit/adapters/promlimit"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
)

func Example() {
	ctx := context.Background()
	strategy := pglimittest.Memory() // strategies.TokenBucket{}, say
	pool := strategy.Pool()          // your *pgxpool.Pool

	limiter, err := pglimit.New(pool, strategy, pglimit.Config{
		Name:   "api",
		Limit:  pglimit.Every(10 * time.Second),
		Memory: pglimit.Memory{TTL: time.Minute},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	registry := prometheus.NewRegistry() // or prometheus.DefaultRegisterer
	registry.MustRegister(promlimit.New(limiter))

	for _, key := range []string{"user:1", "user:2", "user:1"} {
		_, _ = limiter.Allow(ctx, key)
	}

	answer := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		line := lines.Text()
		if !strings.HasPrefix(line, "#") && !strings.HasSuffix(line, " 0") && !strings.Contains(line, "_bucket{") && !strings.Contains(line, "_sum{") {
			fmt.Println(line)
		}
	}
	// Output:
	// pglimit_allowed_total{limiter="api",source="database",strategy="memory"} 2
	// pglimit_denied_total{limiter="api",source="memory",strategy="memory"} 1
	// pglimit_granted_tokens_total{limiter="api",strategy="memory"} 2
	// pglimit_limit_burst_tokens{limiter="api",strategy="memory"} 1
	// pglimit_limit_tokens_per_second{limiter="api",strategy="memory"} 0.1
	// pglimit_max_waiting{limiter="api",strategy="memory"} 65536
	// pglimit_requests_sent_total{limiter="api",strategy="memory"} 2
	// pglimit_round_trip_duration_seconds_count{limiter="api",operation="take",outcome="ok",strategy="memory"} 2
	// pglimit_round_trips_total{limiter="api",strategy="memory"} 2
	// pglimit_timeout_seconds{limiter="api",strategy="memory"} 1
}
