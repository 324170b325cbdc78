//go:build !race

// The race detector makes a sync.Pool forget, and so counts more allocations.

package httplimit_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/pglimit/ratelimit/adapters/httplimit"
	"github.com/pglimit/ratelimit/pglimit"
)

// sink is a ResponseWriter with a new header for each answer, as a server's is.
type sink struct {
	header http.Header
	status int
}

func (s *sink) Header() http.Header         { return s.header }
func (s *sink) Write(b []byte) (int, error) { return len(b), nil }
func (s *sink) WriteHeader(status int)      { s.status = status }

var bare = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooManyRequests) })

// answer one request.
func answer(handler http.Handler, request *http.Request) int {
	w := sink{header: make(http.Header)}
	handler.ServeHTTP(&w, request)
	return w.status
}

// byAddress is a request and a config that count it by the address of the client.
func byAddress() (*http.Request, httplimit.Config) {
	request := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
	request.Header.Set("X-Forwarded-For", "198.51.100.1, 192.0.2.7")
	return request, httplimit.Config{Key: httplimit.ClientIP(httplimit.Proxies{Count: 1})}
}

// A denial from memory allocates the key, the header's map, its values and their text.
func TestADenialFromMemoryIsCheap(t *testing.T) {
	request, config := byAddress()
	for name, headers := range map[string]httplimit.Headers{"Draft11": httplimit.Draft11, "Legacy": httplimit.Legacy, "None": httplimit.None} {
		config.Headers = headers
		limiter := withStages(t, pglimit.PerHour(1))
		denying := httplimit.New(limiter, config)(fine)
		for answer(denying, request) != http.StatusTooManyRequests {
		}
		without := testing.AllocsPerRun(500, func() { answer(bare, request) })
		with := testing.AllocsPerRun(500, func() { answer(denying, request) })
		if more := with - without; more > 4 {
			t.Errorf("%s: %v allocations more than a bare handler's %v", name, more, without)
		}
		if denied := limiter.Stats().Denied[pglimit.FromMemory]; denied < 500 {
			t.Errorf("%s: %d were denied from memory", name, denied)
		}
	}
}

func BenchmarkBareHandler(b *testing.B) {
	request, _ := byAddress()
	b.ReportAllocs()
	for b.Loop() {
		answer(bare, request)
	}
}

func BenchmarkDenialFromMemory(b *testing.B) {
	request, config := byAddress()
	denying := httplimit.New(withStages(b, pglimit.PerHour(1)), config)(fine)
	answer(denying, request)
	answer(denying, request)
	b.ReportAllocs()
	for b.Loop() {
		answer(denying, request)
	}
}
