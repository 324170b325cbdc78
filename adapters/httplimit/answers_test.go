package httplimit_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/adapters/httplimit"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
)

const types = "https://iana.org/assignments/http-problem-types#"

func TestADenialSaysWhenToComeBack(t *testing.T) {
	t.Parallel()
	memory := pglimittest.Memory()
	limiter := newLimiter(t, memory, pglimit.Config{Limit: pglimit.PerMinute(40).WithBurst(2)})
	url := served(t, httplimit.New(limiter, everybody)(fine))
	for range 2 {
		granted := get(t, url)
		granted.expect(t, 200, "Retry-After", "", "Cache-Control", "")
		if granted.body != "fine" {
			t.Error(granted.body)
		}
	}
	memory.Advance(100 * time.Millisecond)
	denied := get(t, url)
	denied.expect(t, 429, "Retry-After", "2", "RateLimit", `"api";r=0;t=2`, "RateLimit-Policy", `"api";q=2;w=3`)
	if p := denied.problem(t); p.Type != types+"quota-exceeded" || !reflect.DeepEqual(p.Violated, []string{"api"}) || p.Detail != "Try again in 2 seconds." {
		t.Errorf("%+v", p)
	}
	memory.Advance(500 * time.Millisecond)
	denied = get(t, url)
	denied.expect(t, 429, "Retry-After", "1")
	if p := denied.problem(t); p.Detail != "Try again in 1 second." {
		t.Errorf("%+v", p)
	}
	memory.Advance(time.Second)
	get(t, url).expect(t, 200)
}

// The promise holds through a server: of many requests at once, exactly the burst is granted.
func TestManyClientsAtOnce(t *testing.T) {
	t.Parallel()
	var called atomic.Int64
	next := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { called.Add(1) })
	url := served(t, httplimit.New(limited(t, pglimit.PerHour(10)), everybody)(next))
	var granted atomic.Int64
	var clients sync.WaitGroup
	for range 40 {
		clients.Go(func() {
			switch reply := get(t, url); reply.StatusCode {
			case http.StatusOK:
				granted.Add(1)
			case http.StatusTooManyRequests:
				reply.problem(t)
			default:
				t.Error(reply.Status)
			}
		})
	}
	clients.Wait()
	if granted.Load() != 10 || called.Load() != 10 {
		t.Errorf("%d were granted, %d reached the handler", granted.Load(), called.Load())
	}
}

func TestABlockedKeyIsToldSo(t *testing.T) {
	t.Parallel()
	block := pglimit.Block{After: 1, Within: time.Minute, For: time.Hour, Max: time.Hour, Forget: 24 * time.Hour}
	limiter := newLimiter(t, pglimittest.Memory(), pglimit.Config{Limit: pglimit.PerSecond(3), Block: block})
	config := everybody
	config.Cost = func(r *http.Request) int64 { return int64(len(r.URL.Path)) }
	url := served(t, httplimit.New(limiter, config)(fine))
	get(t, url+"/").expect(t, 200)
	get(t, url+"/23").expect(t, 429) // blocks
	blocked := get(t, url+"/")       // for which the tokens are there
	blocked.expect(t, 429, "Retry-After", "3600", "RateLimit", `"api";r=0;t=3600`)
	if p := blocked.problem(t); p.Type != types+"abnormal-usage-detected" || len(p.Violated) != 1 {
		t.Errorf("%+v", p)
	}
}

// No decision, no fields: neither what is left nor what the limit is was looked at.
func TestWhereNoDecisionIsKnown(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		onError func(context.Context, pglimit.Failure) (pglimit.Decision, error)
		fail    error
		status  int
		retry   string
	}{
		"the error is returned": {nil, pglimit.ErrUnavailable, 503, "1"},
		"open":                  {pglimit.FailOpen, pglimit.ErrUnavailable, 200, ""},
		"closed":                {pglimit.FailClosed, pglimit.ErrUnavailable, 503, "1"},
		"local":                 {pglimit.FailLocal(1), pglimit.ErrUnavailable, 200, ""},
		"a function": {func(context.Context, pglimit.Failure) (pglimit.Decision, error) {
			return pglimit.Decision{RetryAfter: 90 * time.Second}, nil
		}, pglimit.ErrUnavailable, 503, "90"},
		"not migrated": {pglimit.FailOpen, pglimit.ErrNotMigrated, 503, "1"},
	} {
		for _, headers := range []httplimit.Headers{httplimit.Draft11, httplimit.Legacy} {
			memory, log := pglimittest.Memory(), &logged{}
			config := everybody
			config.Headers, config.Logger = headers, log.logger()
			limiter := newLimiter(t, memory, pglimit.Config{Limit: pglimit.PerMinute(5), OnError: c.onError})
			url := served(t, httplimit.New(limiter, config)(fine))
			memory.Fail(c.fail)
			for range 2 {
				answer := get(t, url)
				answer.expect(t, c.status, "Retry-After", c.retry, "RateLimit", "", "RateLimit-Policy", "", "X-RateLimit-Limit", "", "X-RateLimit-Remaining", "", "X-RateLimit-Reset", "")
				if c.status == 503 {
					if p := answer.problem(t); p.Type != types+"temporary-reduced-capacity" || strings.Contains(answer.body, "pglimit") {
						t.Errorf("%s: %s", name, answer.body)
					}
				}
			}
			lines := strings.Count(log.String(), "httplimit: not decided")
			if c.status == 503 && lines != 1 || c.status == 200 && lines != 0 {
				t.Errorf("%s: logged %q", name, log.String())
			}
			memory.Fail(nil)
			get(t, url).expect(t, 200)
		}
	}
}

// A request without a key, or that makes no sense, does not pass, and nothing is taken for it. The client is told what
// it did wrong, and nothing of the server's insides. The log has what the server did wrong, once.
func TestWhatCannotBeDecided(t *testing.T) {
	t.Parallel()
	key := func(of httplimit.KeyFunc) httplimit.Config { return httplimit.Config{Key: of} }
	fails := func(err error) httplimit.Config {
		return key(func(*http.Request) (string, error) { return "user:42", err })
	}
	cost := func(n int64) httplimit.Config {
		return httplimit.Config{Key: everybody.Key, Cost: func(*http.Request) int64 { return n }}
	}
	all := func(requests ...pglimit.Request) httplimit.Config {
		return httplimit.Config{Key: everybody.Key, Requests: func(*http.Request, string) []pglimit.Request { return requests }}
	}
	limit := everybody
	limit.Limit = func(*http.Request) pglimit.Limit { return pglimit.Limit{Tokens: 1} }
	nobody := httplimit.Subject("user", func(*http.Request) string { return "" })
	long := strings.Repeat("x", 1025)
	for name, c := range map[string]struct {
		config httplimit.Config
		status int
		text   string // for the client, or in the log if the status is 500
	}{
		"an empty key":     {key(httplimit.Constant("")), 500, "Config.Key: the key is empty"},
		"an error":         {fails(errors.New("secret of the server's")), 500, "Config.Key: secret of the server's"},
		"no subject":       {key(nobody), 500, "there is no user"},
		"no header":        {key(httplimit.Header("X-Api-Key")), 400, "the header field X-Api-Key is missing"},
		"too long a key":   {key(httplimit.Constant(long)), 400, "the key of this request has 1025 bytes: at most 1024 are allowed"},
		"not UTF-8":        {key(httplimit.Constant("secret\xff")), 400, "the key of this request is not valid UTF-8, or has a NUL byte"},
		"NUL":              {key(httplimit.Constant("secret\x00")), 400, "the key of this request is not valid UTF-8, or has a NUL byte"},
		"nobody":           {key(httplimit.FirstOf(nobody, httplimit.Unauthorized("Bearer"))), 401, "this needs credentials: log in first"},
		"401 of your own":  {fails(httplimit.ErrUnauthorized), 401, "the request has no valid credentials"},
		"400 of your own":  {fails(fmt.Errorf("%w: no tenant", httplimit.ErrBadRequest)), 400, "no tenant"},
		"400 behind it":    {fails(fmt.Errorf("no tenant: %w", httplimit.ErrBadRequest)), 400, "no tenant"},
		"401 joined to it": {fails(errors.Join(errors.New("no tenant"), httplimit.ErrUnauthorized)), 401, "no tenant"},
		"400 alone":        {fails(httplimit.ErrBadRequest), 400, "the request cannot be counted"},

		"more than the burst":     {cost(6), 400, "the cost of this request is 6: more than the burst of 5 (5/1m) could never be granted"},
		"a cost of nothing":       {cost(0), 500, "Config.Cost: is 0"},
		"a limit that is none":    {limit, 500, "Period"},
		"no requests":             {all(), 500, "Config.Requests: there are none"},
		"a request without a key": {all(pglimit.Request{Key: "a"}, pglimit.Request{}), 500, "request 1: the key is empty"},
		"one for a long key":      {all(pglimit.Request{Key: long}), 400, "the key of this request has 1025 bytes: at most 1024 are allowed"},
		"negative tokens":         {all(pglimit.Request{Key: "a"}, pglimit.Request{Key: "b", Tokens: -1}), 500, "request 1: Tokens is -1"},
		"tokens beyond the burst": {all(pglimit.Request{Key: "a", Tokens: 6}), 400, "the cost of this request is 6: more than the burst of 5 (5/1m) could never be granted"},
		"a bucket twice":          {all(pglimit.Request{Key: "a"}, pglimit.Request{Key: "a"}), 500, "twice"},
	} {
		log := &logged{}
		c.config.Logger = log.logger()
		limiter := limited(t, pglimit.PerMinute(5))
		next := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Errorf("%s: it has passed", name) })
		url := served(t, httplimit.New(limiter, c.config)(next))
		challenge, detail := "", c.text
		if name == "nobody" {
			challenge = "Bearer"
		}
		if c.status == 500 {
			detail = "The limits of requests are not set up properly. The server's log says more."
		}
		for range 2 {
			answer := get(t, url)
			answer.expect(t, c.status, "RateLimit", "", "RateLimit-Policy", "", "Retry-After", "", "WWW-Authenticate", challenge)
			if p := answer.problem(t); p.Type != "about:blank" || p.Detail != detail {
				t.Errorf("%s: %s", name, answer.body)
			}
		}
		if stats := limiter.Stats(); stats.Allowed.Total() != 0 {
			t.Errorf("%s: %+v", name, stats)
		}
		text := log.String()
		if c.status == 500 && (strings.Count(text, "\n") != 1 || !strings.Contains(text, c.text)) || c.status != 500 && text != "" {
			t.Errorf("%s: logged %q", name, text)
		}
	}
}

// A handler that asks the limiter itself answers as a middleware does: a denial, a block, and where no decision is
// known.
func TestAHandlerAnswersAsTheMiddleware(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(memory *pglimittest.Strategy, c *pglimit.Config){
		"over the limit": func(*pglimittest.Strategy, *pglimit.Config) {},
		"blocked": func(_ *pglimittest.Strategy, c *pglimit.Config) {
			c.Block = pglimit.Block{After: 1, Within: time.Hour, For: time.Hour, Max: time.Hour, Forget: time.Hour}
		},
		"fails": func(m *pglimittest.Strategy, _ *pglimit.Config) { m.Fail(pglimit.ErrUnavailable) },
		"a fallback": func(m *pglimittest.Strategy, c *pglimit.Config) {
			m.Fail(pglimit.ErrUnavailable)
			c.OnError = pglimit.FailClosed
		},
		"costs too much":  func(_ *pglimittest.Strategy, c *pglimit.Config) { c.Limit = pglimit.PerHour(1) },
		"a name to quote": func(_ *pglimittest.Strategy, c *pglimit.Config) { c.Name = `"ö"` },
	} {
		var answers []string
		for _, asks := range []bool{true, false} {
			memory := pglimittest.Memory()
			config := pglimit.Config{Name: "api", Limit: pglimit.PerHour(3)}
			change(memory, &config)
			limiter := newLimiter(t, memory, config)
			handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				d, err := limiter.AllowN(r.Context(), "all", 2)
				switch {
				case err != nil:
					httplimit.WriteFailed(w, r, err)
				case !d.Allowed:
					httplimit.Deny(w, r, d)
				}
			}))
			if !asks {
				config := everybody
				config.Cost, config.Logger = func(*http.Request) int64 { return 2 }, new(logged).logger()
				handler = httplimit.New(limiter, config)(fine)
			}
			var recorder *httptest.ResponseRecorder
			for range 3 {
				recorder = httptest.NewRecorder()
				handler.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/", http.NoBody))
			}
			if recorder.Code == http.StatusOK {
				t.Errorf("%s: it passes", name)
			}
			answers = append(answers, fmt.Sprint(recorder.Code, recorder.Header(), recorder.Body))
		}
		if answers[0] != answers[1] {
			t.Errorf("%s: the handler answers %s\nthe middleware %s", name, answers[0], answers[1])
		}
	}
}

func TestYourOwnAnswers(t *testing.T) {
	t.Parallel()
	memory := pglimittest.Memory()
	limiter := newLimiter(t, memory, pglimit.Config{Limit: pglimit.PerMinute(1)})
	var denials []httplimit.Denial
	config := everybody
	config.Denied = func(w http.ResponseWriter, r *http.Request, denial httplimit.Denial) {
		denials = append(denials, denial)
		if r.URL.Path == "/default" {
			httplimit.WriteDenied(w, r, denial)
			return
		}
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = fmt.Fprintf(w, "slowly, %s", denial.Decisions[0].Key)
	}
	config.Failed = func(w http.ResponseWriter, r *http.Request, err error) {
		if !errors.Is(err, pglimit.ErrUnavailable) {
			t.Error(err)
		}
		w.WriteHeader(http.StatusTeapot)
		_, _ = fmt.Fprint(w, httplimit.StatusOf(err))
	}
	config.Logger = new(logged).logger()
	url := served(t, httplimit.New(limiter, config)(fine))
	byDefault := served(t, httplimit.New(limiter, everybody)(fine))

	get(t, url).expect(t, 200)
	own := get(t, url)
	own.expect(t, 429, "Retry-After", "60", "Cache-Control", "no-store", "RateLimit", `"api";r=0;t=60`, "Content-Type", "text/plain; charset=utf-8")
	if own.body != "slowly, all" {
		t.Error(own.body)
	}
	asked, without := get(t, url+"/default"), get(t, byDefault)
	asked.expect(t, 429, "Content-Type", without.Header.Get("Content-Type"))
	if asked.body != without.body {
		t.Errorf("%s%s", asked.body, without.body)
	}
	if d := denials[0]; len(denials) != 2 || d.RetryAfter != time.Minute || len(d.Decisions) != 1 || d.Decisions[0].Limiter != "api" {
		t.Errorf("%+v", denials)
	}
	memory.Fail(pglimit.ErrUnavailable)
	own = get(t, url)
	own.expect(t, http.StatusTeapot, "Retry-After", "1", "Cache-Control", "no-store")
	if own.body != "503" {
		t.Error(own.body)
	}
}

// A client that has gone is no failure to be logged.
func TestAClientThatHasGoneIsNotLogged(t *testing.T) {
	t.Parallel()
	log := &logged{}
	config := everybody
	config.Logger = log.logger()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	recorder := httptest.NewRecorder()
	request := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", http.NoBody)
	httplimit.New(limited(t, pglimit.PerHour(1)), config)(fine).ServeHTTP(recorder, request)
	if recorder.Code != http.StatusServiceUnavailable || log.String() != "" {
		t.Error(recorder.Code, log.String())
	}
}

func TestStatusOfAnError(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want int
	}{
		{fmt.Errorf("%w: no tenant", httplimit.ErrBadRequest), 400},
		{&pglimit.RequestError{Field: "Tokens", Why: "is 6"}, 400},
		{&pglimit.RequestError{Field: "Limiter", Why: "is empty"}, 500},
		{fmt.Errorf("request 1: %w", &pglimit.LimitError{Field: "Burst"}), 500},
		{fmt.Errorf("no groups: %w", errors.ErrUnsupported), 500},
		{fmt.Errorf("%w: not today", httplimit.ErrUnauthorized), 401},
		{httplimit.ErrFallback, 503},
		{pglimit.ErrUnavailable, 503},
		{pglimit.ErrPermission, 503},
		{pglimit.ErrClosed, 503},
		{context.DeadlineExceeded, 503},
	} {
		if got := httplimit.StatusOf(c.err); got != c.want {
			t.Errorf("%v: %d, want %d", c.err, got, c.want)
		}
	}
}

// A Denial need not be of a middleware.
func TestWriteDeniedOfADenialOfOnesOwn(t *testing.T) {
	t.Parallel()
	recorder := httptest.NewRecorder()
	httplimit.WriteDenied(recorder, nil, httplimit.Denial{
		RetryAfter: 2 * time.Second, Decisions: []pglimit.Decision{{Limiter: "api"}},
	})
	const want = `"detail":"Try again in 2 seconds.","violated-policies":["api"]}`
	if got := recorder.Body.String(); recorder.Code != http.StatusTooManyRequests || !strings.Contains(got, want) {
		t.Errorf("%d %q", recorder.Code, got)
	}
}
