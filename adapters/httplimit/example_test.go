package httplimit_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"

	"github.com/pglimit/ratelimit/adapters/httplimit"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
)

func Example() {
	// With a database: pglimit.New(pool, strategies.TokenBucket{}, config).
	limiter, err := pglimittest.New(pglimittest.Memory(), pglimit.Config{Name: "api", Limit: pglimit.PerMinute(2)})
	if err != nil {
		fmt.Println(err)
		return
	}
	limit := httplimit.New(limiter, httplimit.Config{Key: httplimit.ClientIP(httplimit.Proxies{})})

	mux := http.NewServeMux()
	mux.HandleFunc("GET /", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello\n") })
	server := httptest.NewServer(limit(mux))
	defer server.Close()

	for range 3 {
		response, err := http.Get(server.URL)
		if err != nil {
			fmt.Println(err)
			return
		}
		body, _ := io.ReadAll(response.Body)
		_ = response.Body.Close()
		fmt.Println(response.Status, response.Header.Get("RateLimit"))
		fmt.Print(string(body))
	}
	// Output:
	// 200 OK "api";r=1;t=30
	// hello
	// 200 OK "api";r=0;t=30
	// hello
	// 429 Too Many Requests "api";r=0;t=30
	// {"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,"detail":"Try again in 30 seconds.","violated-policies":["api"]}
}
