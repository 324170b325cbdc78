package httplimit_test

import (
	"bufio"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"time"

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
		try  func(http.ResponseWriter) int64 // says the length of the body
		want int
		long int64
	}{
		"a flush":                        {true, flush, 200, 0},
		"a flush that is not supported":  {false, flush, 502, 0},
		"a reader":                       {true, copied(strings.NewReader("x")), 200, 1},
		"a long one":                     {true, copied(strings.NewReader(strings.Repeat("x", 1<<16))), 200, 1 << 16},
		"as long as the beginning":       {true, copied(strings.NewReader(strings.Repeat("x", 512))), 200, 512},
		"an empty one":                   {true, copied(), 502, 0},
		"one that fails":                 {true, copied(broken), 502, 0},
		"one that fails later":           {true, copied(strings.NewReader("x"), broken), 200, 1},
		"one that fails after the start": {true, copied(strings.NewReader(strings.Repeat("x", 1<<16)), broken), 200, 1 << 16},
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
		if answer.StatusCode != c.want || recorded != c.want || int64(len(answer.body)) != c.long || length != c.long {
			t.Errorf("%s: %d and %d bytes were recorded, and the client got %d and %d bytes, want %d and %d", name, recorded, length, answer.StatusCode, len(answer.body), c.want, c.long)
		}
	}
}

// What a server's ResponseWriter can do, the handler's can.
func TestTheWriterKeepsWhatItCanDo(t *testing.T) {
	t.Parallel()
	can := func(w http.ResponseWriter) (all [6]bool) {
		_, all[0] = w.(http.Flusher)
		_, all[1] = w.(http.Hijacker)
		_, all[2] = w.(http.Pusher)
		_, all[3] = w.(io.StringWriter)
		_, all[4] = w.(io.ReaderFrom)
		all[5] = http.NewResponseController(w).SetReadDeadline(time.Time{}) == nil
		return all
	}
	for _, http2 := range []bool{false, true} {
		var bare, wrapped [6]bool
		config := everybody
		config.Refund = httplimit.OnFailure
		limit := httplimit.New(limited(t, pglimit.PerHour(5)), config)
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			bare = can(w)
			limit(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { wrapped = can(w) })).ServeHTTP(wrapper{w}, r)
		}))
		server.EnableHTTP2 = http2
		server.StartTLS()
		response, err := server.Client().Get(server.URL)
		if err != nil || response.ProtoMajor == 2 != http2 {
			t.Fatal(response, err)
		}
		_ = response.Body.Close()
		server.Close()
		bare[4] = true // ReadFrom falls back to Write
		if wrapped != bare || !bare[0] || bare[1] == http2 || !bare[5] {
			t.Errorf("HTTP/2 %t: %v, want %v", http2, wrapped, bare)
		}
	}
	// And what it cannot, it does not pretend to.
	for name, w := range map[string]http.ResponseWriter{
		"nothing":  struct{ http.ResponseWriter }{httptest.NewRecorder()},
		"flushing": httptest.NewRecorder(),
		"hijacking": struct {
			http.ResponseWriter
			http.Hijacker
		}{httptest.NewRecorder(), nil},
	} {
		config := everybody
		config.Refund = httplimit.OnFailure
		bare := can(w)
		bare[3], bare[4] = true, true
		httplimit.New(limited(t, pglimit.PerHour(5)), config)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if wrapped := can(w); wrapped != bare {
				t.Errorf("%s: %v, want %v", name, wrapped, bare)
			}
		})).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", http.NoBody))
	}
}

// wrapper is a ResponseWriter of a middleware that only lets http.ResponseController through.
type wrapper struct{ http.ResponseWriter }

func (w wrapper) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Behind such wrappers too the recorder sees who takes the connection: then a panic gives nothing back.
func TestWhatIsTakenThroughWrappersIsSeen(t *testing.T) {
	t.Parallel()
	statuses := make(chan int, 1)
	config := everybody
	config.Refund = func(_ *http.Request, status int) bool { statuses <- status; return false }
	for name, c := range map[string]struct {
		use  func(http.ResponseWriter) error
		want int
	}{
		"controlled hijack": {func(w http.ResponseWriter) error {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_ = conn.Close()
			}
			return err
		}, 101},
		"hijack": {func(w http.ResponseWriter) error {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				_ = conn.Close()
			}
			return err
		}, 101},
		"controlled flush": {func(w http.ResponseWriter) error { return http.NewResponseController(w).Flush() }, 200},
		"flush":            {func(w http.ResponseWriter) error { w.(http.Flusher).Flush(); return nil }, 200},
		"deadline":         {func(w http.ResponseWriter) error { return http.NewResponseController(w).SetReadDeadline(time.Time{}) }, 500},
	} {
		limit := httplimit.New(limited(t, pglimit.PerHour(1)), config)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if err := c.use(w); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			panic(http.ErrAbortHandler)
		}))
		url := served(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { limit.ServeHTTP(wrapper{wrapper{w}}, r) }))
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
		must(t, err)
		if response, err := http.DefaultClient.Do(request); err == nil {
			_ = response.Body.Close()
		}
		if status := <-statuses; status != c.want {
			t.Errorf("%s: %d, want %d", name, status, c.want)
		}
	}
}

// A connection that is taken over, as for WebSockets, works, and has the status 101.
func TestAConnectionThatIsTakenOver(t *testing.T) {
	t.Parallel()
	statuses := make(chan int, 1)
	config := everybody
	config.Refund = func(_ *http.Request, status int) bool { statuses <- status; return false }
	url := served(t, httplimit.New(limited(t, pglimit.PerHour(1)), config)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, buffer, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.Close() }()
		_, _ = buffer.WriteString("HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\nhello\n")
		_ = buffer.Flush()
	})))
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	must(t, err)
	defer func() { _ = conn.Close() }()
	_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\n")
	all, err := io.ReadAll(bufio.NewReader(conn))
	if err != nil || !strings.HasSuffix(string(all), "\r\n\r\nhello\n") || <-statuses != 101 {
		t.Errorf("%q, %v", all, err)
	}
}

// A file goes through ReadFrom, and arrives.
func TestAFileIsServed(t *testing.T) {
	t.Parallel()
	want, err := os.ReadFile("recorder.go")
	must(t, err)
	config := everybody
	config.Refund = httplimit.OnFailure
	url := served(t, httplimit.New(limited(t, pglimit.PerHour(2)), config)(http.FileServerFS(os.DirFS("."))))
	if got := get(t, url+"/recorder.go"); got.body != string(want) {
		t.Error(len(got.body), got.Status)
	}
	get(t, url+"/missing.go").expect(t, 404)
	get(t, url+"/recorder.go").expect(t, 200)
	get(t, url+"/recorder.go").expect(t, 429)
}
