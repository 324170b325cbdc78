package serve

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit/pglimittest"
)

// What the server adds to a denial that it remembers, without the network.
func BenchmarkDenialFromMemory(b *testing.B) {
	memory := pglimittest.MemoryOn(time.Now)
	made, err := parse([]byte("limiters: {api: {limit: 1/1h, memory_ttl: 1h}}"))
	if err != nil {
		b.Fatal(err)
	}
	made[0].Strategy = memory
	s, err := New(Config{Limits: made, Pool: memory.Pool()})
	if err != nil {
		b.Fatal(err)
	}
	const body = `{"limiter":"api","key":"user:42"}`
	for range 2 {
		s.answers(request(http.MethodPost, "/v1/allow", body))
	}
	r := request(http.MethodPost, "/v1/allow", body)
	b.ReportAllocs()
	for b.Loop() {
		r.Body = io.NopCloser(strings.NewReader(body))
		s.handler.ServeHTTP(nowhere{http.Header{}}, r)
	}
}

type nowhere struct{ header http.Header }

func (n nowhere) Header() http.Header          { return n.header }
func (nowhere) Write(text []byte) (int, error) { return len(text), nil }
func (nowhere) WriteHeader(int)                {}
