package httplimit_test

import (
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/adapters/httplimit"
	"github.com/pglimit/ratelimit/pglimit"
)

// wrapper is a ResponseWriter of a middleware that only lets http.ResponseController through.
type wrapper struct{ http.ResponseWriter }

func (w wrapper) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// aborting is a reader that panics.
type aborting struct{}

func (aborting) Read([]byte) (int, error) { panic(http.ErrAbortHandler) }

// The status that counts is the one that the client gets: the first, also where the handler tried something else before
// in vain, panics or takes the connection, and behind wrappers that only http.ResponseController looks through.
func TestTheStatusOfAnAnswer(t *testing.T) {
	t.Parallel()
	flush := func(w http.ResponseWriter) { _ = http.NewResponseController(w).Flush() }
	hijacked := func(w http.ResponseWriter) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\n")
		_ = conn.Close()
	}
	deadline := func(w http.ResponseWriter) {
		if err := http.NewResponseController(w).SetReadDeadline(time.Time{}); err != nil {
			t.Error(err)
		}
	}
	aborts := func(http.ResponseWriter) { panic(http.ErrAbortHandler) }
	status := func(code int) func(http.ResponseWriter) { return func(w http.ResponseWriter) { w.WriteHeader(code) } }
	copied := func(from ...io.Reader) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) { _, _ = io.Copy(w, struct{ io.Reader }{io.MultiReader(from...)}) }
	}
	const none = 0 // the client gets no answer
	for name, c := range map[string]struct {
		steps            []func(http.ResponseWriter)
		counts, received int
	}{
		"nothing":                  {nil, 200, 200},
		"twice":                    {[]func(http.ResponseWriter){status(404), status(200)}, 404, 404},
		"early hints":              {[]func(http.ResponseWriter){status(103), status(404)}, 404, 404},
		"a body":                   {[]func(http.ResponseWriter){copied(strings.NewReader("x")), status(502)}, 200, 200},
		"an empty body":            {[]func(http.ResponseWriter){copied(), status(502)}, 502, 502},
		"a flush":                  {[]func(http.ResponseWriter){flush, status(502)}, 200, 200},
		"a plain flush":            {[]func(http.ResponseWriter){func(w http.ResponseWriter) { w.(http.Flusher).Flush() }, status(502)}, 200, 200},
		"a panic":                  {[]func(http.ResponseWriter){aborts}, 500, none},
		"a hint, and a panic":      {[]func(http.ResponseWriter){status(103), aborts}, 500, none},
		"a panic behind a status":  {[]func(http.ResponseWriter){status(404), flush, aborts}, 404, 404},
		"a panic behind a flush":   {[]func(http.ResponseWriter){flush, aborts}, 200, 200},
		"a panic within a body":    {[]func(http.ResponseWriter){copied(strings.NewReader("x"), aborting{})}, 200, none},
		"a panic before a body":    {[]func(http.ResponseWriter){copied(aborting{})}, 500, none},
		"a connection taken":       {[]func(http.ResponseWriter){hijacked}, 101, 101},
		"taken, and then a panic":  {[]func(http.ResponseWriter){hijacked, aborts}, 101, 101},
		"a deadline, then a panic": {[]func(http.ResponseWriter){deadline, aborts}, 500, none},
	} {
		statuses := make(chan int, 1)
		config := everybody
		config.Refund = func(_ *http.Request, status int) bool { statuses <- status; return false }
		limit := httplimit.New(limited(t, pglimit.PerHour(1)), config)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			for _, step := range c.steps {
				step(w)
			}
		}))
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			limit.ServeHTTP(wrapper{wrapper{w}}, r)
		}))
		server.Config.ErrorLog = log.New(io.Discard, "", 0) // it complains of a second status
		server.Start()
		received := none
		if answer, err := http.Get(server.URL); err == nil {
			received = answer.StatusCode
			_ = answer.Body.Close()
		}
		if counts := <-statuses; counts != c.counts || received != c.received {
			t.Errorf("%s: %d counts, and the client got %d, want %d and %d", name, counts, received, c.counts, c.received)
		}
		server.Close()
	}
}

// Where the server's ResponseWriter can neither flush nor give away its connection, nothing is sent by trying.
func TestAWriterThatCanDoNothing(t *testing.T) {
	t.Parallel()
	config, counts := everybody, 0
	config.Refund = func(_ *http.Request, status int) bool { counts = status; return false }
	limit := httplimit.New(limited(t, pglimit.PerHour(1)), config)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if err := http.NewResponseController(w).Flush(); !errors.Is(err, errors.ErrUnsupported) {
			t.Error(err)
		}
		if _, _, err := w.(http.Hijacker).Hijack(); !errors.Is(err, errors.ErrUnsupported) {
			t.Error(err)
		}
		w.WriteHeader(http.StatusBadGateway)
	}))
	recorder := httptest.NewRecorder()
	limit.ServeHTTP(struct{ http.ResponseWriter }{recorder}, httptest.NewRequest(http.MethodGet, "/", http.NoBody))
	if counts != http.StatusBadGateway || recorder.Code != http.StatusBadGateway {
		t.Errorf("%d counts, and %d was sent", counts, recorder.Code)
	}
}
