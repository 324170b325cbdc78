//nolint:bodyclose // the bodies are strings
package httplimit

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
)

// turns play a Limiter without a limit, in the time of a synctest: all that anybody waits for is a pause.
type turns struct {
	mu     sync.Mutex
	until  map[string]time.Time
	asked  []string // the keys that were waited for
	err    error    // of Pause
	failed error    // of Wait
}

func (f *turns) Wait(ctx context.Context, key string) (d pglimit.Decision, err error) {
	f.mu.Lock()
	f.asked = append(f.asked, key)
	until, failed := f.until[key], f.failed
	f.mu.Unlock()
	if deadline, ends := ctx.Deadline(); ends && deadline.Before(until) {
		return d, fmt.Errorf("%w: until %v", pglimit.ErrWaitTooLong, until)
	}
	select {
	case <-ctx.Done():
		return d, ctx.Err()
	case <-time.After(time.Until(until)):
		return d, failed
	}
}

func (f *turns) Pause(ctx context.Context, key string, until time.Time) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := cmp.Or(f.err, ctx.Err()); err != nil {
		return err
	}
	if f.until == nil {
		f.until = map[string]time.Time{}
	}
	if until.After(f.until[key]) {
		f.until[key] = until
	}
	return nil
}

// with the limiter of a test.
func (t *Transport) with(limiter *turns) *Transport {
	t.client.Turns = limiter
	return t
}

// server plays the API: each response in turn, and then 200.
type server struct {
	responses []*http.Response
	got       []string // method, URL and body of the requests
	at        []time.Duration
	began     time.Time
}

func (s *server) RoundTrip(r *http.Request) (*http.Response, error) {
	if s.began.IsZero() {
		s.began = time.Now()
	}
	body := ""
	if r.Body != nil {
		b, err := io.ReadAll(r.Body)
		if err = errors.Join(err, r.Body.Close()); err != nil {
			return nil, err
		}
		body = string(b)
	}
	s.got, s.at = append(s.got, strings.TrimSpace(r.Method+" "+r.URL.String()+" "+body)), append(s.at, time.Since(s.began))
	if len(s.responses) == 0 {
		return respond(200), nil
	}
	response := s.responses[0]
	s.responses = s.responses[1:]
	return response, nil
}

// respond makes a response with these fields.
func respond(status int, fields ...string) *http.Response {
	h := http.Header{}
	for i := 0; i < len(fields); i += 2 {
		h.Add(fields[i], fields[i+1])
	}
	return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader("body"))}
}

func newRequest(t *testing.T, method, url, body string) *http.Request {
	t.Helper()
	var reader io.Reader
	if body != "" {
		reader = strings.NewReader(body)
	}
	r, err := http.NewRequestWithContext(t.Context(), method, url, reader)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// within returns the request with that much time.
func within(t *testing.T, r *http.Request, d time.Duration) *http.Request {
	t.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), d)
	t.Cleanup(cancel)
	return r.WithContext(ctx)
}

// What a response asks for, at 10:00.
func TestPauseOf(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 29, 10, 0, 0, 0, time.UTC)
	date := func(d time.Duration) string { return now.Add(d).Format(http.TimeFormat) }
	unix := func(d time.Duration) string { return fmt.Sprint(now.Add(d).Unix()) }
	const s, ages = time.Second, 200 * 365 * 24 * time.Hour
	for name, row := range map[string]struct {
		status int
		fields []string
		want   time.Duration // -1: ages
	}{
		"seconds":                       {429, []string{"Retry-After", "30"}, 30 * s},
		"503":                           {503, []string{"Retry-After", "30"}, 30 * s},
		"403, as GitHub's":              {403, []string{"Retry-After", "30"}, 30 * s},
		"of a redirect":                 {301, []string{"Retry-After", "30"}, 0},
		"of a success: when to poll":    {202, []string{"Retry-After", "30"}, 0},
		"a date":                        {429, []string{"Retry-After", date(90 * s)}, 90 * s},
		"a date, RFC 850":               {429, []string{"Retry-After", now.Add(90 * s).Format("Monday, 02-Jan-06 15:04:05 GMT")}, 90 * s},
		"the server's clock is behind":  {429, []string{"Date", date(-time.Hour), "Retry-After", date(-time.Hour + 9*s)}, 9 * s},
		"the server's clock is ahead":   {429, []string{"Date", date(time.Hour), "Retry-After", date(time.Hour + 9*s)}, 9 * s},
		"seconds know no clock":         {429, []string{"Date", date(time.Hour), "Retry-After", "9"}, 9 * s},
		"no date is in Date":            {429, []string{"Date", "soon", "Retry-After", date(9 * s)}, 9 * s},
		"a date in the past":            {429, []string{"Retry-After", date(-s)}, 0},
		"in the year 9999":              {429, []string{"Retry-After", "Fri, 31 Dec 9999 23:59:59 GMT"}, -1},
		"at the beginning of time":      {429, []string{"Retry-After", "Mon, 01 Jan 0001 00:00:00 GMT"}, 0},
		"at once":                       {429, []string{"Retry-After", "0"}, 0},
		"negative":                      {429, []string{"Retry-After", "-1"}, 0},
		"a sign":                        {429, []string{"Retry-After", "+1"}, 0},
		"too large a number":            {429, []string{"Retry-After", "99999999999999999999"}, -1},
		"the largest int64":             {429, []string{"Retry-After", "9223372036854775807"}, -1},
		"not a number":                  {429, []string{"Retry-After", "NaN"}, 0},
		"infinite":                      {429, []string{"Retry-After", "Inf"}, 0},
		"a fraction":                    {429, []string{"Retry-After", "1.5"}, 0},
		"hexadecimal":                   {429, []string{"Retry-After", "0x10"}, 0},
		"a list":                        {429, []string{"Retry-After", "1, 2"}, 0},
		"empty":                         {429, []string{"Retry-After", ""}, 0},
		"none":                          {429, []string{}, 0},
		"twice":                         {429, []string{"Retry-After", "7", "Retry-After", "5"}, 7 * s},
		"twice, one of them malformed":  {429, []string{"Retry-After", "soon", "Retry-After", "7"}, 7 * s},
		"RateLimit of a success":        {200, []string{"RateLimit", `"default";r=0;t=30`}, 30 * s},
		"some are left":                 {200, []string{"RateLimit", `"default";r=1;t=30`}, 0},
		"denied, but some are left":     {429, []string{"RateLimit", `"default";r=1;t=30`}, 0},
		"RateLimit has no precedence":   {429, []string{"RateLimit", `"default";r=0;t=30`, "Retry-After", "5"}, 5 * s},
		"a malformed one has none":      {429, []string{"RateLimit", `"default";r=0;t=30`, "Retry-After", "soon"}, 30 * s},
		"not said until when":           {200, []string{"RateLimit", `"default";r=0`}, 0},
		"several limits":                {200, []string{"RateLimit", `"s";r=0;t=1, "min";r=0;t=20 , "day";r=9;t=8000`}, 20 * s},
		"on several lines":              {200, []string{"RateLimit", `"s";r=0;t=1`, "RateLimit", `"min";r=0;t=20`}, 20 * s},
		"in the other order, and more":  {200, []string{"RateLimit", `"a";pk=:cHsd+Ra894==:;t=30;x="a;b";y;z=?1; r=0`}, 30 * s},
		"parameters in a name":          {200, []string{"RateLimit", `"a;r=0;t=30, \"b";r=5;t=30`}, 0},
		"parameters in a string":        {200, []string{"RateLimit", `"a";x=";r=0;t=30";r=5;t=30`}, 0},
		"the last of two counts":        {200, []string{"RateLimit", `"a";r=0;r=5;t=30`}, 0},
		"negative, RateLimit":           {200, []string{"RateLimit", `"a";r=0;t=-30`}, 0},
		"too large, RateLimit":          {200, []string{"RateLimit", `"a";r=0;t=99999999999999999999`}, -1},
		"NaN, RateLimit":                {200, []string{"RateLimit", `"a";r=0;t=NaN`}, 0},
		"no end of the string":          {200, []string{"RateLimit", `"a;r=0;t=30`}, 0},
		"no comma":                      {200, []string{"RateLimit", `"a";r=0;t=30 "b"`}, 0},
		"an old draft":                  {200, []string{"RateLimit", `limit=100, remaining=0, reset=50`}, 0},
		"no RateLimit":                  {200, []string{"RateLimit", ""}, 0},
		"X-RateLimit of a success":      {200, []string{"X-RateLimit-Remaining", "0", "X-RateLimit-Reset", unix(40 * s)}, 40 * s},
		"X-RateLimit, 403":              {403, []string{"X-RateLimit-Remaining", "0", "X-RateLimit-Reset", unix(40 * s)}, 40 * s},
		"X-RateLimit, the clock is off": {200, []string{"Date", date(time.Hour), "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", unix(time.Hour + 40*s)}, 40 * s},
		"X-RateLimit, some are left":    {200, []string{"X-RateLimit-Remaining", "5", "X-RateLimit-Reset", unix(40 * s)}, 0},
		"X-RateLimit, seconds":          {200, []string{"X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "40"}, 0},
		"X-RateLimit, too large":        {200, []string{"X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "99999999999999999999"}, -1},
		"X-RateLimit, NaN":              {200, []string{"X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "NaN"}, 0},
		"X-RateLimit, the rest missing": {429, []string{"X-RateLimit-Remaining", "0"}, 0},
	} {
		got := pauseOf(row.status, respond(row.status, row.fields...).Header, now)
		if row.want < 0 && got < ages || row.want >= 0 && got != row.want {
			t.Errorf("%s: %v, want %v", name, got, row.want)
		}
	}
}

// What a middleware of ours answers, a Transport understands: also that the last token was used.
func TestPauseOfAMiddleware(t *testing.T) {
	t.Parallel()
	for _, headers := range []Headers{Draft11, Legacy} {
		limiter, err := pglimittest.New(pglimittest.MemoryOn(time.Now), pglimit.Config{Name: `"a";r=5`, Limit: pglimit.PerHour(2)})
		if err != nil {
			t.Fatal(err)
		}
		handler := New(limiter, Config{Key: Constant("all"), Headers: headers})(http.NotFoundHandler())
		for i, wants := range []bool{false, true, true} {
			recorder := httptest.NewRecorder()
			handler.ServeHTTP(recorder, newRequest(t, "GET", "/", ""))
			if pause := pauseOf(recorder.Code, recorder.Header(), time.Now()); (pause > 20*time.Minute) != wants {
				t.Errorf("%d: %d with %v asks for %v", i, recorder.Code, recorder.Header(), pause)
			}
		}
	}
}

// A request behind a 429 waits until the pause has ended. Others, with another key, do not.
func TestTransportPauses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api, limiter := &server{responses: []*http.Response{respond(429, "Retry-After", "30")}}, &turns{}
		transport := &Transport{Base: api}
		for _, url := range []string{"https://API.example.com/1", "https://api.example.com/2", "https://api.example.com:8443/3"} {
			response, err := transport.with(limiter).RoundTrip(newRequest(t, "GET", url, ""))
			if err != nil || len(api.got) == 1 && response.StatusCode != http.StatusTooManyRequests {
				t.Error(response, err)
			}
		}
		if want := []time.Duration{0, 30 * time.Second, 30 * time.Second}; !slices.Equal(api.at, want) {
			t.Error(api.at)
		}
		if want := []string{"host:api.example.com", "host:api.example.com", "host:api.example.com:8443"}; !slices.Equal(limiter.asked, want) {
			t.Error(limiter.asked)
		}
	})
}

// A pause is bounded, by an hour or by MaxPause.
func TestMaxPause(t *testing.T) {
	t.Parallel()
	for longest, want := range map[time.Duration]time.Duration{0: time.Hour, time.Minute: time.Minute, 48 * time.Hour: 48 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			api := &server{responses: []*http.Response{respond(429, "Retry-After", "99999999999999999999")}}
			transport := &Transport{Base: api, MaxPause: longest, Retry: true}
			response, err := transport.with(&turns{}).RoundTrip(newRequest(t, "GET", "https://api.example.com/", ""))
			if err != nil || response.StatusCode != http.StatusOK || !slices.Equal(api.at, []time.Duration{0, want}) {
				t.Error(response, err, api.at)
			}
		})
	}
}

// What is sent twice, and with what body.
func TestRetry(t *testing.T) {
	t.Parallel()
	const url = "https://api.example.com/"
	denied := []string{"Retry-After", "5"}
	for name, row := range map[string]struct {
		request  func(t *testing.T) *http.Request
		response *http.Response
		want     []string
	}{
		"GET":     {func(t *testing.T) *http.Request { return newRequest(t, "GET", url, "") }, respond(429, denied...), []string{"GET " + url, "GET " + url}},
		"503":     {func(t *testing.T) *http.Request { return newRequest(t, "GET", url, "") }, respond(503, denied...), []string{"GET " + url, "GET " + url}},
		"PUT":     {func(t *testing.T) *http.Request { return newRequest(t, "PUT", url, "new") }, respond(429, denied...), []string{"PUT " + url + " new", "PUT " + url + " new"}},
		"DELETE":  {func(t *testing.T) *http.Request { return newRequest(t, "DELETE", url, "") }, respond(429, denied...), []string{"DELETE " + url, "DELETE " + url}},
		"POST":    {func(t *testing.T) *http.Request { return newRequest(t, "POST", url, "new") }, respond(429, denied...), []string{"POST " + url + " new"}},
		"a token": {func(t *testing.T) *http.Request { return newRequest(t, "GET", url, "") }, respond(200, "RateLimit", `"a";r=0;t=5`), []string{"GET " + url}},
		"never":   {func(t *testing.T) *http.Request { return newRequest(t, "GET", url, "") }, respond(429), []string{"GET " + url}},
		"a stream": {func(t *testing.T) *http.Request {
			r := newRequest(t, "PUT", url, "new")
			r.GetBody = nil
			return r
		}, respond(429, denied...), []string{"PUT " + url + " new"}},
		"its body is lost": {func(t *testing.T) *http.Request {
			r := newRequest(t, "PUT", url, "new")
			r.GetBody = func() (io.ReadCloser, error) { return nil, errors.New("lost") }
			return r
		}, respond(429, denied...), []string{"PUT " + url + " new"}},
		"POST with a key": {func(t *testing.T) *http.Request {
			r := newRequest(t, "POST", url, "new")
			r.Header.Set("Idempotency-Key", "7")
			return r
		}, respond(429, denied...), []string{"POST " + url + " new", "POST " + url + " new"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				first := row.response.StatusCode
				api, limiter := &server{responses: []*http.Response{row.response}}, &turns{}
				r := row.request(t)
				body, header := r.Body, r.Header.Clone()
				response, err := (&Transport{Base: api, Retry: true}).with(limiter).RoundTrip(r)
				if err != nil || !slices.Equal(api.got, row.want) {
					t.Fatal(err, api.got)
				}
				want := first
				if len(row.want) == 2 {
					want = 200
					if api.at[1] != 5*time.Second {
						t.Error(api.at)
					}
				}
				if b, err := io.ReadAll(response.Body); response.StatusCode != want || string(b) != "body" || err != nil {
					t.Error(response.Status, string(b), err)
				}
				if r.Body != body || fmt.Sprint(r.Header) != fmt.Sprint(header) {
					t.Error("the request was changed")
				}
			})
		})
	}
}

// Of two refusals, the caller gets the second, and the pause of the second holds.
func TestRetryOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api, limiter := &server{responses: []*http.Response{respond(429, "Retry-After", "5"), respond(503, "Retry-After", "7")}}, &turns{}
		transport := &Transport{Base: api, Retry: true}
		response, err := transport.with(limiter).RoundTrip(newRequest(t, "GET", "https://api.example.com/", ""))
		if err != nil || response.StatusCode != http.StatusServiceUnavailable {
			t.Error(response, err)
		}
		_, err = transport.with(limiter).RoundTrip(newRequest(t, "GET", "https://api.example.com/", ""))
		if want := []time.Duration{0, 5 * time.Second, 12 * time.Second}; err != nil || !slices.Equal(api.at, want) {
			t.Error(api.at, err)
		}
	})
}

// A request that the deadline leaves no time for is not sent, and its body is closed.
func TestTransportDoesNotSend(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api, broken := &server{}, errors.New("broken")
		paused := &turns{until: map[string]time.Time{"host:api.example.com": time.Now().Add(time.Minute)}}
		late, leave := context.WithCancel(t.Context())
		go func() {
			time.Sleep(time.Second) //nolint:forbidigo // in a bubble
			leave()
		}()
		for name, row := range map[string]struct {
			transport *Transport
			limiter   *turns
			ctx       context.Context
			want      error
		}{
			"the pause is longer":  {&Transport{}, paused, within(t, newRequest(t, "GET", "/", ""), time.Second).Context(), pglimit.ErrWaitTooLong},
			"the caller leaves":    {&Transport{}, paused, late, context.Canceled},
			"the database is down": {&Transport{}, &turns{failed: broken}, t.Context(), broken},
			"no key":               {&Transport{Key: Header("X-Api-Key")}, &turns{}, t.Context(), ErrNoKey},
		} {
			row.transport.Base = api
			r := newRequest(t, "PUT", "https://api.example.com/", "new")
			body := &closes{Reader: r.Body}
			r.Body = body
			client := http.Client{Transport: row.transport.with(row.limiter)}
			response, err := client.Do(r.WithContext(row.ctx)) //nolint:bodyclose // there is none
			if response != nil || !errors.Is(err, row.want) || !body.closed.Load() {
				t.Errorf("%s: %v, %v, closed: %v", name, response, err, body.closed.Load())
			}
		}
		r := newRequest(t, "PUT", "https://api.example.com/", "new")
		body := &closes{Reader: r.Body}
		r.Body = body
		_, err := (&Transport{Base: api}).RoundTrip(r) //nolint:bodyclose // there is none
		if err == nil || !strings.Contains(err.Error(), "Limiter is nil") || !body.closed.Load() {
			t.Error(err)
		}
		if len(api.got) > 0 {
			t.Errorf("sent: %q", api.got)
		}
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

type closes struct {
	io.Reader
	closed atomic.Bool
}

func (c *closes) Close() error {
	c.closed.Store(true)
	return nil
}

// If there is no time for a second try, the caller gets the first response, with its body.
func TestRetryTooLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := &server{responses: []*http.Response{respond(429, "Retry-After", "30")}}
		r := within(t, newRequest(t, "GET", "https://api.example.com/", ""), time.Second)
		response, err := (&Transport{Base: api, Retry: true}).with(&turns{}).RoundTrip(r)
		if err != nil || response.StatusCode != http.StatusTooManyRequests || len(api.got) != 1 {
			t.Fatal(response, err)
		}
		if body, err := io.ReadAll(response.Body); string(body) != "body" || err != nil {
			t.Error(string(body), err)
		}
	})
}

// A pause that fails is logged, and the caller has its response. There is no second try: it would come at once.
func TestPauseFails(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	api, limiter := &server{responses: []*http.Response{respond(429, "Retry-After", "30")}}, &turns{err: errors.New("the database is down")}
	transport := &Transport{Base: api, Retry: true, Logger: slog.New(slog.NewTextHandler(&log, nil))}
	response, err := transport.with(limiter).RoundTrip(newRequest(t, "GET", "https://api.example.com/", ""))
	if err != nil || response.StatusCode != http.StatusTooManyRequests || len(api.got) != 1 {
		t.Error(response, err)
	}
	for _, want := range []string{"not paused", "the database is down", "host:api.example.com"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("%q is not in %s", want, &log)
		}
	}
}

// The key is paused also if the caller has left meanwhile.
func TestPauseOutlivesItsCaller(t *testing.T) {
	t.Parallel()
	ctx, leave := context.WithCancel(t.Context())
	limiter := &turns{}
	transport := &Transport{Base: roundTripper(func(*http.Request) (*http.Response, error) {
		leave()
		return respond(429, "Retry-After", "30"), nil
	})}
	response, err := transport.with(limiter).RoundTrip(newRequest(t, "GET", "https://api.example.com/", "").WithContext(ctx))
	if err != nil || response.StatusCode != http.StatusTooManyRequests || len(limiter.until) != 1 {
		t.Error(response, err, limiter.until)
	}
}

// An error of the transport below is returned as it is.
func TestBaseFails(t *testing.T) {
	t.Parallel()
	broken := errors.New("connection refused")
	transport := &Transport{Retry: true, Base: roundTripper(func(*http.Request) (*http.Response, error) { return nil, broken })}
	if response, err := transport.with(&turns{}).RoundTrip(newRequest(t, "GET", "https://api.example.com/", "")); response != nil || err != broken { //nolint:errorlint // the same
		t.Error(response, err)
	}
}

// While a request waits for its second try, the body of the first response is read, but not without end, and closed
// when it is replaced.
func TestRetryOfAGiantBody(t *testing.T) {
	t.Parallel()
	read := new(counted)
	body := &closes{Reader: read}
	giant := respond(429, "Retry-After", "5")
	giant.Body = body
	synctest.Test(t, func(t *testing.T) {
		api := &server{responses: []*http.Response{giant}}
		response, err := (&Transport{Base: api, Retry: true}).with(&turns{}).RoundTrip(newRequest(t, "GET", "https://api.example.com/", ""))
		if err != nil || response.StatusCode != http.StatusOK || !body.closed.Load() || read.n > 64<<10 {
			t.Errorf("%v, %v: closed: %v, %d bytes were read", response, err, body.closed.Load(), read.n)
		}
		none := respond(429, "Retry-After", "5")
		none.Body = nil
		api.responses = []*http.Response{none}
		if response, err := (&Transport{Base: api, Retry: true}).with(&turns{}).RoundTrip(newRequest(t, "GET", "https://api.example.com/", "")); err != nil || response.StatusCode != http.StatusOK {
			t.Error(response, err)
		}
	})
	// Who is given it after all can read all of it.
	long := strings.Repeat("long ", 30_000)
	response := respond(429)
	response.Body = io.NopCloser(strings.NewReader(long))
	hold(response)
	if b, err := io.ReadAll(response.Body); string(b) != long || err != nil {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}

// counted has no end.
type counted struct{ n int }

func (c *counted) Read(p []byte) (int, error) {
	c.n += len(p)
	return len(p), nil
}

// With a real server, the second try has the first one's connection, and the body arrives twice.
func TestRetryOnAConnection(t *testing.T) {
	t.Parallel()
	var requests atomic.Int64
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if string(body) != "new" || err != nil {
			t.Errorf("%q, %v", body, err)
		}
		if requests.Add(1) == 1 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
			_, _ = io.WriteString(w, strings.Repeat("wait", 1000))
			return
		}
		_, _ = io.WriteString(w, "done")
	}))
	defer api.Close()
	var connections, reused atomic.Int64
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		connections.Add(1)
		if info.Reused {
			reused.Add(1)
		}
	}})
	limiter := new(turns)
	base := new(http.Transport)
	defer base.CloseIdleConnections()
	transport := &Transport{Base: base, Retry: true}
	client := http.Client{Transport: transport.with(limiter)}
	response, err := client.Do(newRequest(t, "PUT", api.URL, "new").WithContext(ctx))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	if body, err := io.ReadAll(response.Body); string(body) != "done" || err != nil {
		t.Error(string(body), err)
	}
	if connections.Load() != 2 || reused.Load() != 1 {
		t.Errorf("%d connections, %d of them the same", connections.Load(), reused.Load())
	}
}
