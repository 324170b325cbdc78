package httplimit_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/adapters/httplimit"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
)

// left in the bucket of everybody.
func left(t testing.TB, limiter *pglimit.Limiter) int64 {
	t.Helper()
	d, err := limiter.Peek(t.Context(), "all")
	if err != nil {
		t.Fatal(err)
	}
	return d.Remaining
}

func TestWhatCounts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		refund  func(*http.Request, int) bool
		counted []string // of the statuses below
	}{
		"all":                    {nil, []string{"200", "302", "404", "500"}},
		"successes":              {httplimit.OnFailure, []string{"200", "302"}},
		"what is not our fault":  {httplimit.OnServerError, []string{"200", "302", "404"}},
		"failures":               {httplimit.OnSuccess, []string{"404", "500"}},
		"a function of your own": {func(r *http.Request, status int) bool { return r.Method == http.MethodGet && status == 302 }, []string{"200", "404", "500"}},
	} {
		limiter := limited(t, pglimit.PerHour(100))
		config := everybody
		config.Refund = c.refund
		config.Cost = func(*http.Request) int64 { return 5 }
		handler := httplimit.New(limiter, config)(fine)
		for _, status := range []string{"200", "302", "404", "500"} {
			before, want := left(t, limiter), int64(0)
			for _, counted := range c.counted {
				if counted == status {
					want = 5
				}
			}
			recorder := httptest.NewRecorder()
			handler.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/?status="+status, http.NoBody))
			if taken := before - left(t, limiter); taken != want || recorder.Body.String() != "fine" {
				t.Errorf("%s: %s has cost %d, want %d", name, status, taken, want)
			}
		}
	}
}

// A client that has the whole answer has its tokens back: it can come again at once.
func TestTheTokensAreBackWithTheAnswer(t *testing.T) {
	t.Parallel()
	config := everybody
	config.Refund = httplimit.OnFailure
	url := served(t, httplimit.New(limited(t, pglimit.PerHour(1)), config)(fine))
	for range 20 {
		get(t, url+"?status=404").expect(t, 404, "RateLimit", `"api";r=0;t=3600`)
	}
	get(t, url).expect(t, 200)
	get(t, url).expect(t, 429)
}

func TestAllOfSeveralLimitsAreGivenBack(t *testing.T) {
	t.Parallel()
	config := everybody
	config.Refund = httplimit.OnFailure
	config.Requests = func(_ *http.Request, key string) []pglimit.Request {
		return []pglimit.Request{{Key: key}, {Key: "org:7", Tokens: 2}}
	}
	url := served(t, httplimit.New(limited(t, pglimit.PerHour(2)), config)(fine))
	for range 5 {
		get(t, url+"?status=500").expect(t, 500, "RateLimit", `"api";r=1;t=1800, "api-2";r=0;t=3600`)
	}
	get(t, url).expect(t, 200)
	get(t, url).expect(t, 429)
}

// The status that counts is the first, whatever else the handler does.
func TestTheStatusOfAnAnswer(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		handler func(http.ResponseWriter)
		want    int
	}{
		"nothing":  {func(http.ResponseWriter) {}, 200},
		"a body":   {func(w http.ResponseWriter) { _, _ = w.Write([]byte("x")); w.WriteHeader(http.StatusBadGateway) }, 200},
		"a string": {func(w http.ResponseWriter) { _, _ = io.WriteString(w, "x"); w.WriteHeader(http.StatusBadGateway) }, 200},
		"a reader": {func(w http.ResponseWriter) {
			_, _ = io.Copy(w, strings.NewReader("x"))
			w.WriteHeader(http.StatusBadGateway)
		}, 200},
		"a flush": {func(w http.ResponseWriter) { w.(http.Flusher).Flush(); w.WriteHeader(http.StatusBadGateway) }, 200},
		"a controlled one": {func(w http.ResponseWriter) {
			_ = http.NewResponseController(w).Flush()
			w.WriteHeader(http.StatusBadGateway)
		}, 200},
		"twice":               {func(w http.ResponseWriter) { w.WriteHeader(http.StatusNotFound); w.WriteHeader(http.StatusOK) }, 404},
		"early hints":         {func(w http.ResponseWriter) { w.WriteHeader(http.StatusEarlyHints); w.WriteHeader(http.StatusNotFound) }, 404},
		"a panic":             {func(http.ResponseWriter) { panic("a test's") }, 500},
		"a hint, and a panic": {func(w http.ResponseWriter) { w.WriteHeader(http.StatusEarlyHints); panic("a test's") }, 500},
		// What was sent counts, because the client has it.
		"an abort behind a status": {func(w http.ResponseWriter) { w.WriteHeader(http.StatusNotFound); panic(http.ErrAbortHandler) }, 404},
		"an abort behind a body":   {func(w http.ResponseWriter) { _, _ = w.Write([]byte("x")); panic(http.ErrAbortHandler) }, 200},
		"an abort within a body": {func(w http.ResponseWriter) {
			_, _ = io.Copy(w, struct{ io.Reader }{io.MultiReader(strings.NewReader("x"), aborting{})})
		}, 200},
		"an abort before a body": {func(w http.ResponseWriter) { _, _ = io.Copy(w, aborting{}) }, 500},
	} {
		var got int
		config := everybody
		config.Refund = func(_ *http.Request, status int) bool { got = status; return false }
		handler := httplimit.New(limited(t, pglimit.PerHour(1)), config)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { c.handler(w) }))
		func() {
			defer func() {
				if what := recover(); (what != nil) != (strings.Contains(name, "a panic") || strings.Contains(name, "an abort")) {
					t.Errorf("%s: panicked with %v", name, what)
				}
			}()
			handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", http.NoBody))
		}()
		if got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// aborting is a reader that panics.
type aborting struct{}

func (aborting) Read([]byte) (int, error) { panic(http.ErrAbortHandler) }

// A client could go before the answer for ever. A function of yours may give back all the same, and
// then the refund works. A deadline is of the server's own making.
func TestAClientThatGoesIsCounted(t *testing.T) {
	t.Parallel()
	fails := func(w http.ResponseWriter) { w.WriteHeader(http.StatusBadGateway) }
	aborts := func(http.ResponseWriter) { panic(http.ErrAbortHandler) }
	yours := func(_ *http.Request, status int) bool { return status >= 500 }
	for name, c := range map[string]struct {
		refund  func(*http.Request, int) bool
		handler func(http.ResponseWriter)
		err     error // of the request's context
		left    int64
	}{
		"failure":             {httplimit.OnFailure, fails, context.Canceled, 0},
		"failure, abort":      {httplimit.OnFailure, aborts, context.Canceled, 0},
		"server error":        {httplimit.OnServerError, fails, context.Canceled, 0},
		"server error, abort": {httplimit.OnServerError, aborts, context.Canceled, 0},
		"failure, still here": {httplimit.OnFailure, aborts, nil, 1},
		"failure, late":       {httplimit.OnFailure, fails, context.DeadlineExceeded, 1},
		"server error, late":  {httplimit.OnServerError, fails, context.DeadlineExceeded, 1},
		"your own":            {yours, fails, context.Canceled, 1},
		"your own, abort":     {yours, aborts, context.Canceled, 1},
	} {
		limiter := limited(t, pglimit.PerHour(1))
		config := everybody
		config.Refund = c.refund
		ctx := &ending{Context: t.Context()}
		handler := httplimit.New(limiter, config)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			ctx.err = c.err
			c.handler(w)
		}))
		func() {
			defer func() { _ = recover() }()
			handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodGet, "/", http.NoBody))
		}()
		if n := left(t, limiter); n != c.left {
			t.Errorf("%s: %d left, want %d", name, n, c.left)
		}
	}
}

// ending is a context that ends when err is set.
type ending struct {
	context.Context
	err error
}

func (e *ending) Err() error { return e.err }

// A client that reads what it wants through a proxy, and hangs up before the end.
func TestAClientThatHangsUpOnAProxyIsCounted(t *testing.T) {
	t.Parallel()
	backend, err := url.Parse(served(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "the goods")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done() // there is more to come
	})))
	if err != nil {
		t.Fatal(err)
	}
	for name, refund := range map[string]func(*http.Request, int) bool{"failure": httplimit.OnFailure, "server error": httplimit.OnServerError} {
		limiter, ended := limited(t, pglimit.PerHour(1)), make(chan struct{})
		config := everybody
		config.Refund = refund
		limit := httplimit.New(limiter, config)(httputil.NewSingleHostReverseProxy(backend))
		front := served(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer close(ended)
			limit.ServeHTTP(w, r)
		}))
		ctx, hangUp := context.WithCancel(t.Context())
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, front, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(response.Body, make([]byte, len("the goods"))); err != nil {
			t.Error(err)
		}
		hangUp()
		_ = response.Body.Close()
		<-ended
		if n := left(t, limiter); n != 0 {
			t.Errorf("%s: %d left, want 0", name, n)
		}
	}
}

// While Postgres is down nothing was taken, and a refund that fails is logged.
func TestRefundsInAnOutage(t *testing.T) {
	t.Parallel()
	memory, log := pglimittest.Memory(), &logged{}
	limiter := newLimiter(t, memory, pglimit.Config{Limit: pglimit.PerHour(5), OnError: pglimit.FailOpen})
	config := everybody
	config.Refund, config.Logger = httplimit.OnFailure, log.logger()
	url := served(t, httplimit.New(limiter, config)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		memory.Fail(pglimit.ErrUnavailable)
		fine(w, r)
	})))
	get(t, url+"?status=500").expect(t, 500, "RateLimit", `"api";r=4;t=2880`)
	if text := log.String(); !strings.Contains(text, "tokens not given back") || strings.Count(text, "\n") != 1 {
		t.Error(text)
	}
	get(t, url+"?status=500").expect(t, 500, "RateLimit", "")
	if text := log.String(); strings.Count(text, "\n") != 1 {
		t.Error(text)
	}
}

// What OnError granted was not taken, so there is nothing to give back.
func TestWhatAFallbackGrantsIsNotGivenBack(t *testing.T) {
	t.Parallel()
	memory, log := pglimittest.Memory(), &logged{}
	config := everybody
	config.Refund, config.Logger = httplimit.OnFailure, log.logger()
	limiter := newLimiter(t, memory, pglimit.Config{Limit: pglimit.PerHour(5), OnError: pglimit.FailOpen})
	memory.Fail(pglimit.ErrUnavailable)
	get(t, served(t, httplimit.New(limiter, config)(fine))+"?status=500").expect(t, 500)
	if text := log.String(); text != "" {
		t.Error(text)
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
			limit(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { wrapped = can(w) })).ServeHTTP(w, r)
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
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
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
