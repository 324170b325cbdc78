package httplimit_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"github.com/pglimit/ratelimit/adapters/httplimit"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
)

// left in the bucket of everybody.
func left(t testing.TB, limiter *pglimit.Limiter) int64 {
	t.Helper()
	d, err := limiter.Peek(t.Context(), "all")
	must(t, err)
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

// A client could go before the answer for ever. A function of yours may give back all the same, and
// then the refund works. A deadline is of the server's own making.
func TestAClientThatGoesIsCounted(t *testing.T) {
	t.Parallel()
	fails := func(w http.ResponseWriter) { w.WriteHeader(http.StatusBadGateway) }
	aborts := func(http.ResponseWriter) { panic(http.ErrAbortHandler) }
	stops := func(http.ResponseWriter) {} // after the work, when it sees that nobody waits
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
		"success, stops":      {httplimit.OnSuccess, stops, context.Canceled, 0},
		"success, abort":      {httplimit.OnSuccess, aborts, context.Canceled, 0},
		"success, still here": {httplimit.OnSuccess, stops, nil, 1},
		"success, late":       {httplimit.OnSuccess, stops, context.DeadlineExceeded, 1},
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

// A login form that comes again with 200 says that it failed, to all limits around it.
func TestAHandlerSaysThatItFailed(t *testing.T) {
	t.Parallel()
	says := func(failed bool) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if failed {
				httplimit.Failed(r.Context())
			}
			_, _ = io.WriteString(w, "<form>")
		})
	}
	says(true).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", http.NoBody)) // without a limit
	for name, c := range map[string]struct {
		refund func(*http.Request, int) bool
		failed bool
		left   int64
	}{
		"success, failed":      {httplimit.OnSuccess, true, 0},
		"success, not failed":  {httplimit.OnSuccess, false, 1},
		"failure, failed":      {httplimit.OnFailure, true, 1},
		"failure, not failed":  {httplimit.OnFailure, false, 0},
		"server error, failed": {httplimit.OnServerError, true, 0},
	} {
		outer, inner := limited(t, pglimit.PerHour(1)), limited(t, pglimit.PerHour(1))
		config := everybody
		config.Refund = c.refund
		handler := httplimit.New(outer, config)(httplimit.New(inner, config)(says(c.failed)))
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", http.NoBody))
		if left(t, outer) != c.left || left(t, inner) != c.left {
			t.Errorf("%s: %d and %d left, want %d", name, left(t, outer), left(t, inner), c.left)
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
	must(t, err)
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
		must(t, err)
		response, err := http.DefaultClient.Do(request)
		must(t, err)
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

// givingUp is a strategy that gives back as long as its context does not end, and not for limiter "first".
type givingUp struct{ *pglimittest.Strategy }

func (g givingUp) GiveBack(ctx context.Context, session pglimit.Session, refunds []pglimit.Refund) error {
	if ctx.Err() != nil || refunds[0].Limiter == "first" {
		return errors.Join(pglimit.ErrUnavailable, ctx.Err())
	}
	return g.Strategy.GiveBack(ctx, session, refunds)
}

// A refund outlives the request's context, and one that fails does not stop the others.
func TestEachRefundIsByItself(t *testing.T) {
	t.Parallel()
	strategy, log := givingUp{pglimittest.Memory()}, &logged{}
	limiter, err := pglimittest.New(strategy, pglimit.Config{Name: "api", Limit: pglimit.PerHour(1)})
	must(t, err)
	config := everybody
	config.Logger = log.logger()
	config.Refund = func(*http.Request, int) bool { return true }
	config.Requests = func(_ *http.Request, key string) []pglimit.Request {
		return []pglimit.Request{{Limiter: "first", Key: key}, {Key: key}}
	}
	ctx, leave := context.WithCancel(t.Context())
	handler := httplimit.New(limiter, config)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { leave() }))
	handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodGet, "/", http.NoBody))
	if text := log.String(); left(t, limiter) != 1 || strings.Count(text, "tokens not given back") != 1 || strings.Contains(text, "canceled") {
		t.Errorf("%d left; %s", left(t, limiter), text)
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
