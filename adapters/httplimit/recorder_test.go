package httplimit_test

import (
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/pglimit/ratelimit/adapters/httplimit"
	"github.com/pglimit/ratelimit/pglimit"
)

// What the client gets is what counts, also where the handler tried something else before, in vain.
func TestTheStatusThatTheClientGets(t *testing.T) {
	t.Parallel()
	flush := func(w http.ResponseWriter) int64 {
		_ = http.NewResponseController(w).Flush()
		return 0
	}
	copied := func(from ...io.Reader) func(http.ResponseWriter) int64 {
		return func(w http.ResponseWriter) int64 {
			n, _ := io.Copy(w, struct{ io.Reader }{io.MultiReader(from...)}) // without WriteTo, which would be preferred
			return n
		}
	}
	broken := iotest.ErrReader(errors.New("a test's"))
	for name, c := range map[string]struct {
		able bool                            // to flush
		try  func(http.ResponseWriter) int64 // the length of the body
		want int
	}{
		"a flush":                        {true, flush, 200},
		"a flush that is not supported":  {false, flush, 502},
		"a reader":                       {true, copied(strings.NewReader("x")), 200},
		"a long one":                     {true, copied(strings.NewReader(strings.Repeat("x", 1<<16))), 200},
		"an empty one":                   {true, copied(), 502},
		"one that fails":                 {true, copied(broken), 502},
		"one that fails later":           {true, copied(strings.NewReader("x"), broken), 200},
		"one that fails after the start": {true, copied(strings.NewReader(strings.Repeat("x", 1<<16)), broken), 200},
	} {
		var recorded int
		var length int64
		config := everybody
		config.Refund = func(_ *http.Request, status int) bool { recorded = status; return false }
		limit := httplimit.New(limited(t, pglimit.PerHour(1)), config)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			length = c.try(w)
			w.WriteHeader(http.StatusBadGateway)
		}))
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !c.able {
				w = struct{ http.ResponseWriter }{w}
			}
			limit.ServeHTTP(w, r)
		}))
		server.Config.ErrorLog = log.New(io.Discard, "", 0) // it complains of a second status
		server.Start()
		answer := get(t, server.URL)
		server.Close()
		if answer.StatusCode != c.want || recorded != c.want || int64(len(answer.body)) != length {
			t.Errorf("%s: %d and %d bytes were recorded, and the client got %d and %d bytes, want %d", name, recorded, length, answer.StatusCode, len(answer.body), c.want)
		}
	}
}
