package pglimittest_test

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
)

// handler is what you test: it limits each user.
func handler(limiter *pglimit.Limiter) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		d, err := limiter.Allow(r.Context(), "user:"+r.Header.Get("X-User"))
		if err != nil {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		if !d.Allowed {
			w.Header().Set("Retry-After", fmt.Sprint(math.Ceil(d.RetryAfter.Seconds())))
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}
}

func get(h http.Handler, user string) *httptest.ResponseRecorder {
	request := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
	request.Header.Set("X-User", user)
	recorder := httptest.NewRecorder()
	h.ServeHTTP(recorder, request)
	return recorder
}

func Example() {
	memory := pglimittest.Memory()
	limiter, err := pglimittest.New(memory, pglimit.Config{Name: "api", Limit: pglimit.PerMinute(2)})
	if err != nil {
		fmt.Println(err)
		return
	}
	h := handler(limiter)

	fmt.Println(get(h, "42").Code)
	fmt.Println(get(h, "42").Code)
	denied := get(h, "42")
	fmt.Println(denied.Code, "Retry-After:", denied.Header().Get("Retry-After"))
	memory.Advance(30 * time.Second)
	fmt.Println(get(h, "42").Code)

	// Each user has a bucket.
	d, _ := limiter.Peek(context.Background(), "user:43")
	fmt.Println(d.Remaining, "left for user 43")
	// Output:
	// 200
	// 200
	// 429 Retry-After: 30
	// 200
	// 2 left for user 43
}

// What the handler does while Postgres is down.
func ExampleStrategy_Fail() {
	memory := pglimittest.Memory()
	limiter, _ := pglimittest.New(memory, pglimit.Config{Name: "api", Limit: pglimit.PerMinute(1), OnError: pglimit.FailOpen})
	h := handler(limiter)
	fmt.Println(get(h, "42").Code)
	memory.Fail(pglimit.ErrUnavailable)
	fmt.Println(get(h, "42").Code)
	memory.Fail(nil)
	fmt.Println(get(h, "42").Code)
	// Output:
	// 200
	// 200
	// 429
}
