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

// ending is a context that ends when err is set.
type ending struct {
	context.Context
	err error
}

func (e *ending) Err() error { return e.err }

// What counts is the status, or what the handler says of it, unless the client has gone: it could go before the answer
// for ever. A function of yours may give back all the same. A deadline is of the server's own making.
func TestWhatCounts(t *testing.T) {
	t.Parallel()
	yours := func(r *http.Request, status int) bool { return r.Method == http.MethodGet && status == 502 }
	const aborts = 0 // instead of a status
	for name, c := range map[string]struct {
		refund func(*http.Request, int) bool
		status int
		err    error // of the request's context
		fails  bool  // says the handler
		counts bool
	}{
		"all":                      {refund: nil, status: 500, counts: true},
		"successes, 200":           {refund: httplimit.OnFailure, status: 200, counts: true},
		"successes, 399":           {refund: httplimit.OnFailure, status: 399, counts: true},
		"successes, 400":           {refund: httplimit.OnFailure, status: 400},
		"successes, abort":         {refund: httplimit.OnFailure, status: aborts},
		"not our fault, 499":       {refund: httplimit.OnServerError, status: 499, counts: true},
		"not our fault, 500":       {refund: httplimit.OnServerError, status: 500},
		"failures, 399":            {refund: httplimit.OnSuccess, status: 399},
		"failures, 400":            {refund: httplimit.OnSuccess, status: 400, counts: true},
		"failures, 500":            {refund: httplimit.OnSuccess, status: 500, counts: true},
		"your own, 404":            {refund: yours, status: 404, counts: true},
		"your own, 502":            {refund: yours, status: 502},
		"gone, successes":          {refund: httplimit.OnFailure, status: 502, err: context.Canceled, counts: true},
		"gone, successes, abort":   {refund: httplimit.OnFailure, status: aborts, err: context.Canceled, counts: true},
		"gone, not our fault":      {refund: httplimit.OnServerError, status: 502, err: context.Canceled, counts: true},
		"gone, failures":           {refund: httplimit.OnSuccess, status: 200, err: context.Canceled, counts: true},
		"gone, your own":           {refund: yours, status: 502, err: context.Canceled},
		"late, successes":          {refund: httplimit.OnFailure, status: 502, err: context.DeadlineExceeded},
		"late, not our fault":      {refund: httplimit.OnServerError, status: 502, err: context.DeadlineExceeded},
		"late, failures":           {refund: httplimit.OnSuccess, status: 200, err: context.DeadlineExceeded},
		"says so, failures":        {refund: httplimit.OnSuccess, status: 200, fails: true, counts: true},
		"says so, successes":       {refund: httplimit.OnFailure, status: 200, fails: true},
		"says so, gone, successes": {refund: httplimit.OnFailure, status: 200, fails: true, err: context.Canceled, counts: true},
		"says so, not our fault":   {refund: httplimit.OnServerError, status: 200, fails: true, counts: true},
	} {
		limiter, outer := limited(t, pglimit.PerHour(10)), limited(t, pglimit.PerHour(10))
		config := everybody
		config.Refund, config.Cost = c.refund, func(*http.Request) int64 { return 5 }
		ctx := &ending{Context: t.Context()}
		handler := httplimit.New(outer, config)(httplimit.New(limiter, config)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if ctx.err = c.err; c.fails {
				httplimit.Failed(r.Context())
			}
			if c.status == aborts {
				panic(http.ErrAbortHandler)
			}
			w.WriteHeader(c.status)
		})))
		func() {
			defer func() { _ = recover() }()
			handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodGet, "/", http.NoBody))
		}()
		want := int64(10)
		if c.counts {
			want = 5
		}
		if n, outside := left(t, limiter), left(t, outer); n != want || outside != want {
			t.Errorf("%s: %d left, and %d outside, want %d", name, n, outside, want)
		}
	}
	httplimit.Failed(t.Context()) // without a limit it does nothing
}

// A client that has the whole answer has its tokens back, of all limits: it can come again at once.
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

// A client that reads what it wants through a proxy, and hangs up before the end.
func TestAClientThatHangsUpOnAProxyIsCounted(t *testing.T) {
	t.Parallel()
	backend, err := url.Parse(served(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "the goods")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done() // there is more to come
	})))
	must(t, err)
	limiter, ended := limited(t, pglimit.PerHour(1)), make(chan struct{})
	config := everybody
	config.Refund = httplimit.OnFailure
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
	_, err = io.ReadFull(response.Body, make([]byte, len("the goods")))
	must(t, err)
	hangUp()
	_ = response.Body.Close()
	<-ended
	if n := left(t, limiter); n != 0 {
		t.Errorf("%d left, want 0", n)
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
