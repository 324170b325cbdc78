package httplimit_test

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/adapters/httplimit"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
)

// The numbers, worked by hand. Whole seconds are told as they are, and a nanosecond more is a second more. Numbers end
// at 15 digits.
func TestFieldsOfADecision(t *testing.T) {
	t.Parallel()
	const most = 999_999_999_999_999
	fast := pglimit.Limit{Tokens: 1_000_000_000, Period: time.Second}
	for _, c := range []struct {
		limit        pglimit.Limit
		cost         int64
		before       int // requests
		policy, rate string
	}{
		{pglimit.PerSecond(10).WithBurst(20), 1, 0, `"api";q=20;w=2`, `"api";r=19;t=2`},
		{pglimit.PerSecond(10).WithBurst(20), 1, 15, `"api";q=20;w=2`, `"api";r=4;t=1`},
		{pglimit.PerSecond(10).WithBurst(20), 1, 19, `"api";q=20;w=2`, `"api";r=0;t=1`},
		{pglimit.PerMinute(3), 1, 0, `"api";q=3;w=60`, `"api";r=2;t=40`},
		{pglimit.PerMinute(3), 1, 3, `"api";q=3;w=60`, `"api";r=0;t=20`}, // denied
		{pglimit.PerMinute(3), 2, 1, `"api";q=3;w=60`, `"api";r=1;t=20`}, // denied
		{pglimit.PerSecond(3), 1, 0, `"api";q=3;w=2`, `"api";r=2;t=1`},   // a token takes a whole number of nanoseconds: 1.000000002 s
		{pglimit.Every(1), 1, 0, `"api";q=1;w=1`, `"api";r=0;t=1`},
		{pglimit.Every(time.Second), 1, 0, `"api";q=1;w=1`, `"api";r=0;t=1`},
		{pglimit.Every(time.Second + 1), 1, 0, `"api";q=1;w=2`, `"api";r=0;t=2`},
		{pglimit.Every(time.Second).WithBurst(3), 1, 0, `"api";q=3;w=3`, `"api";r=2;t=2`},
		{pglimit.Every(time.Second + 1).WithBurst(3), 1, 0, `"api";q=3;w=4`, `"api";r=2;t=3`},
		{fast.WithBurst(most), 1, 0, `"api";q=999999999999999;w=1000000`, `"api";r=999999999999998;t=1000000`},
		{fast.WithBurst(most + 2), 1, 0, `"api";q=999999999999999;w=1000001`, `"api";r=999999999999999;t=1000000`},
		{fast.WithBurst(math.MaxInt64/2 - 1e18), 1, 0, `"api";q=999999999999999;w=3611686019`, `"api";r=999999999999999;t=3611686019`},
	} {
		config := everybody
		config.Cost = func(*http.Request) int64 { return c.cost }
		url := served(t, httplimit.New(limited(t, c.limit), config)(fine))
		for range c.before {
			get(t, url)
		}
		answer := get(t, url)
		answer.expect(t, answer.StatusCode, "RateLimit-Policy", c.policy, "RateLimit", c.rate)
	}
}

// What is no limit of the client's has no fields: a rule of the table that allows or denies everything, and a limit of
// new clients. A rule that is only observed is not the client's either, whose own limit is told.
func TestFieldsWithoutALimit(t *testing.T) {
	t.Parallel()
	for _, style := range []httplimit.Headers{httplimit.Draft11, httplimit.Legacy} {
		limiter := newLimiter(t, pglimittest.Memory(), pglimit.Config{
			Limit: pglimit.PerMinute(3), NewKeys: pglimit.NewKeys{Limit: pglimit.PerMinute(1)},
			Limits: pglimit.FixedLimits(
				pglimit.LimitRule{Limiter: "api", Key: "bot", Action: pglimit.ActionDeny},
				pglimit.LimitRule{Limiter: "api", Key: "us", Action: pglimit.ActionAllow},
				pglimit.LimitRule{Limiter: "api", Action: pglimit.ActionObserve, Limit: pglimit.PerMinute(1)},
			),
		})
		url := served(t, httplimit.New(limiter, httplimit.Config{
			Headers: style, Key: func(r *http.Request) (string, error) { return r.Header.Get("Key"), nil },
		})(fine))
		for range 2 {
			answer := get(t, url, "Key", "k")
			answer.expect(t, 200)
			if all := fmt.Sprint(answer.Header); !strings.Contains(all, `q=3;w=60`) && !strings.Contains(all, "X-Ratelimit-Limit:[3]") {
				t.Error(all)
			}
		}
		for key, c := range map[string]struct {
			status int
			retry  string
		}{"us": {200, ""}, "bot": {429, "3600"}, "new": {429, "60"}} {
			get(t, url, "Key", key).expect(t, c.status, "Retry-After", c.retry, "RateLimit-Policy", "", "RateLimit", "",
				"X-RateLimit-Limit", "", "X-RateLimit-Remaining", "", "X-RateLimit-Reset", "")
		}
	}
}

// Each middleware adds to the lists. Its limit has a name of its own, also where the limiter is the
// same.
func TestNestedLimitsAddUp(t *testing.T) {
	t.Parallel()
	memory := pglimittest.Memory()
	outer := newLimiter(t, memory, pglimit.Config{Name: "service", Limit: pglimit.PerMinute(100)})
	inner := newLimiter(t, memory, pglimit.Config{Name: "user", Limit: pglimit.PerMinute(2)})
	byUser := httplimit.Config{Key: httplimit.Header("X-User")}
	handler := httplimit.New(outer, everybody)(httplimit.New(inner, byUser)(httplimit.New(inner, everybody)(fine)))
	url := served(t, handler)
	first := get(t, url, "X-User", "1")
	first.expect(t, 200,
		"RateLimit-Policy", `"service";q=100;w=60, "user";q=2;w=60, "user-2";q=2;w=60`,
		"RateLimit", `"service";r=99;t=60, "user";r=1;t=30, "user-2";r=1;t=30`)
	want := []item{{"service", map[string]int64{"r": 99, "t": 60}}, {"user", map[string]int64{"r": 1, "t": 30}}, {"user-2", map[string]int64{"r": 1, "t": 30}}}
	if got := list(t, first.Header.Values("RateLimit")); !reflect.DeepEqual(got, want) {
		t.Error(got)
	}
	get(t, url, "X-User", "2").expect(t, 200)
	denied := get(t, url, "X-User", "3")
	denied.expect(t, 429, "Retry-After", "30", "RateLimit", `"service";r=97;t=59, "user";r=1;t=30, "user-2";r=0;t=30`)
	if p := denied.problem(t); !reflect.DeepEqual(p.Violated, []string{"user-2"}) {
		t.Errorf("%+v", p)
	}
	// Where the inner one does not know, the outer one still did.
	memory.Fail(nil)
	get(t, url).expect(t, 400, "RateLimit", `"service";r=96;t=58`, "RateLimit-Policy", `"service";q=100;w=60`)
}

// Fields that somebody else has set on several lines are kept too.
func TestLinesOfOthersAreKept(t *testing.T) {
	t.Parallel()
	recorder := httptest.NewRecorder()
	recorder.Header().Add("RateLimit", `"a";r=1`)
	recorder.Header().Add("RateLimit", `"b";r=2`)
	httplimit.New(limited(t, pglimit.PerHour(5)), everybody)(fine).ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/", http.NoBody))
	if got := recorder.Header().Values("RateLimit"); !reflect.DeepEqual(got, []string{`"a";r=1, "b";r=2, "api";r=4;t=2880`}) {
		t.Error(got)
	}
}

func TestSeveralLimitsAtOnce(t *testing.T) {
	t.Parallel()
	memory := pglimittest.Memory()
	limiter := newLimiter(t, memory, pglimit.Config{Limit: pglimit.PerSecond(2)})
	config := httplimit.Config{Key: httplimit.Header("X-User"), Requests: func(_ *http.Request, key string) []pglimit.Request {
		return []pglimit.Request{
			{Key: key},
			{Limiter: "api/day", Key: key, Limit: pglimit.Limit{Tokens: 4, Period: 24 * time.Hour, Burst: 4}},
			{Key: "org:7", Limit: pglimit.PerHour(100)},
		}
	}}
	url := served(t, httplimit.New(limiter, config)(fine))
	get(t, url, "X-User", "1").expect(t, 200,
		"RateLimit-Policy", `"api";q=2;w=1, "api/day";q=4;w=86400, "api-2";q=100;w=3600`,
		"RateLimit", `"api";r=1;t=1, "api/day";r=3;t=64800, "api-2";r=99;t=3564`)
	get(t, url, "X-User", "1").expect(t, 200)
	denied := get(t, url, "X-User", "1")
	denied.expect(t, 429, "Retry-After", "1", "RateLimit", `"api";r=0;t=1, "api/day";r=2;t=43200, "api-2";r=98;t=3528`)
	if p := denied.problem(t); !reflect.DeepEqual(p.Violated, []string{"api"}) {
		t.Errorf("%+v", p)
	}
	memory.Advance(time.Second)
	get(t, url, "X-User", "1").expect(t, 200)
	get(t, url, "X-User", "1").expect(t, 200)
	denied = get(t, url, "X-User", "1") // of both
	denied.expect(t, 429, "Retry-After", "21599")
	if p := denied.problem(t); !reflect.DeepEqual(p.Violated, []string{"api", "api/day"}) {
		t.Errorf("%+v", p)
	}
	get(t, url, "X-User", "2").expect(t, 200) // nothing was taken of org:7 by those denied
}

// withStages is a limiter with its stages, by the clock of the process.
func withStages(t testing.TB, limit pglimit.Limit) *pglimit.Limiter {
	t.Helper()
	memory := pglimittest.MemoryOn(time.Now)
	limiter, err := pglimit.New(memory.Pool(), memory, pglimit.Config{Name: "api", Limit: limit, Memory: pglimit.Memory{TTL: time.Hour}})
	must(t, err)
	t.Cleanup(func() { _ = limiter.Close(t.Context()) })
	return limiter
}

// What the memory of denials does not know is not told.
func TestAGroupDeniedFromMemory(t *testing.T) {
	t.Parallel()
	var from pglimit.Source
	config := everybody
	config.Requests = func(_ *http.Request, key string) []pglimit.Request {
		return []pglimit.Request{{Key: key}, {Limiter: "api/day", Key: key, Limit: pglimit.PerHour(100)}}
	}
	config.Denied = func(w http.ResponseWriter, r *http.Request, d httplimit.Denial) {
		from = d.Decisions[0].Source
		httplimit.WriteDenied(w, r, d)
	}
	handler := httplimit.New(withStages(t, pglimit.PerHour(1)), config)(fine)
	for range 2 {
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", http.NoBody))
	}
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/", http.NoBody))
	if got := recorder.Header().Get("RateLimit"); recorder.Code != 429 || from != pglimit.FromMemory || got != `"api";r=0;t=3600` && got != `"api";r=0;t=3599` {
		t.Error(recorder.Code, from, got)
	}
	if got := recorder.Header().Get("RateLimit-Policy"); got != `"api";q=1;w=3600, "api/day";q=100;w=3600` {
		t.Error(got)
	}
}

func TestNoFields(t *testing.T) {
	t.Parallel()
	config := everybody
	config.Headers = httplimit.None
	url := served(t, httplimit.New(limited(t, pglimit.PerMinute(1)), config)(fine))
	get(t, url).expect(t, 200, "RateLimit", "", "RateLimit-Policy", "", "X-RateLimit-Limit", "", "Retry-After", "")
	denied := get(t, url)
	denied.expect(t, 429, "RateLimit", "", "RateLimit-Policy", "", "X-RateLimit-Limit", "", "Retry-After", "60")
	if p := denied.problem(t); !reflect.DeepEqual(p.Violated, []string{"api"}) {
		t.Errorf("%+v", p)
	}
}

// Whatever the limiter's name, limit and cost: a parser that knows only RFC 9651 and RFC 9457 reads
// what is said of the decision, twice in a list.
func FuzzFields(f *testing.F) {
	f.Add("api", int64(10), int64(time.Second), int64(20), int64(1))
	f.Add("cli 10/1s", int64(1), int64(2*time.Second), int64(1), int64(1))
	f.Add(`a "quoted" \name\`, int64(5), int64(time.Minute), int64(5), int64(3))
	f.Add("größe\n%41;q=7, \"x", int64(1), int64(24*time.Hour), int64(1000), int64(600))
	f.Add("\x1f\x7f ~", int64(1), int64(time.Second), int64(2), int64(1))
	f.Add("many", int64(1_000_000_000), int64(time.Second), int64(3_000_000_000_000_000), int64(2_000_000_000_000_000))
	f.Add("slow", int64(1), int64(pglimit.MaxWindow), int64(1), int64(1))
	f.Fuzz(func(t *testing.T, name string, tokens, period, burst, cost int64) {
		limit := pglimit.Limit{Tokens: tokens, Period: time.Duration(period), Burst: burst}
		limiter, err := pglimittest.New(pglimittest.Memory(), pglimit.Config{Name: name, Limit: limit})
		if err != nil || cost < 1 || cost > burst {
			return
		}
		config := httplimit.Config{Key: httplimit.Constant("all"), Cost: func(*http.Request) int64 { return cost }}
		middleware := httplimit.New(limiter, config)
		request := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
		for range 4 {
			before, _ := limiter.Peek(t.Context(), "all")
			recorder := httptest.NewRecorder()
			recorder.Header().Set("RateLimit-Policy", `"other";q=1`)
			middleware(fine).ServeHTTP(recorder, request)
			policies := list(t, recorder.Header().Values("RateLimit-Policy"))
			rates := list(t, recorder.Header().Values("RateLimit"))
			if len(policies) != 2 || len(rates) != 1 || policies[1].name != rates[0].name || policies[0].name != "other" {
				t.Fatalf("%q", recorder.Header())
			}
			checkNumbers(t, limit, policies[1].parameters, rates[0].parameters, before.Remaining, cost, recorder)
			checkName(t, name, rates[0].name)
			if recorder.Code == http.StatusTooManyRequests {
				var p problem
				if err := json.Unmarshal(recorder.Body.Bytes(), &p); err != nil || len(p.Violated) != 1 || p.Violated[0] != rates[0].name {
					t.Fatalf("%v: %s", err, recorder.Body)
				}
			}
		}
	})
}

// checkNumbers by the draft's words, in floating point: t is the time within which no more than r
// can be used, and Retry-After is not before the end of it.
func checkNumbers(t *testing.T, limit pglimit.Limit, policy, rate map[string]int64, before, cost int64, recorder *httptest.ResponseRecorder) {
	t.Helper()
	const most = 999_999_999_999_999
	denied := recorder.Code == http.StatusTooManyRequests
	left := before
	if !denied {
		left -= cost
	}
	token := float64(limit.Token()) / 1e9
	if denied != (before < cost) || policy["q"] != min(limit.Burst, most) || rate["r"] != min(left, most) {
		t.Fatalf("%v, cost %d of %d: %d %v %v", limit, cost, before, recorder.Code, policy, rate)
	}
	near := func(got int64, seconds float64) bool {
		return got >= 1 && math.Abs(float64(got)-max(1, math.Ceil(seconds))) <= 1+seconds/1e9
	}
	if !near(policy["w"], token*float64(limit.Burst)) {
		t.Fatalf("%v: w is %d", limit, policy["w"])
	}
	if !denied && left > 0 && !near(rate["t"], token*float64(left)) {
		t.Fatalf("%v: r is %d, and t %d", limit, left, rate["t"])
	}
	if retry, _ := strconv.ParseInt(recorder.Header().Get("Retry-After"), 10, 64); denied && (retry != rate["t"] || !near(retry, token*float64(cost-left))) {
		t.Fatalf("%v: Retry-After is %d, and t %d", limit, retry, rate["t"])
	}
}

// checkName: it is printable ASCII, and the limiter's name can be read from it.
func checkName(t *testing.T, name, told string) {
	t.Helper()
	plain, err := url.PathUnescape(told)
	if name == "other" {
		plain = strings.TrimSuffix(plain, "-2")
	}
	if err != nil || plain != name || strings.ContainsFunc(told, func(r rune) bool { return r < ' ' || r > '~' }) {
		t.Fatalf("%q is told as %q: %v", name, told, fmt.Sprint(err))
	}
}
