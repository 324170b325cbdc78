package httplimit_test

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/adapters/httplimit"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// noRefunds is a strategy that can only take.
type noRefunds struct{ pglimit.Strategy }

func (s noRefunds) Check(r *rate.Request) error { return rate.Unsupported(s.Name(), r) }

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	memory, key := limited(t, pglimit.PerHour(1)), httplimit.Constant("all")
	plain, err := pglimittest.New(noRefunds{pglimittest.Memory()}, pglimit.Config{Name: "api", Limit: pglimit.PerHour(1)})
	must(t, err)
	block := pglimit.Block{After: 1, Within: time.Minute, For: time.Hour, Max: time.Hour}
	blocking := newLimiter(t, pglimittest.Memory(), pglimit.Config{Name: "login", Limit: pglimit.PerHour(3), Block: block})
	requests := func(*http.Request, string) []pglimit.Request { return nil }
	limit := func(*http.Request) pglimit.Limit { return pglimit.Limit{} }
	for _, c := range []struct {
		limiter *pglimit.Limiter
		config  httplimit.Config
		want    string // "<nil>" is valid
	}{
		{memory, httplimit.Config{Key: key}, "<nil>"},
		{memory, httplimit.Config{Key: key, Requests: requests, Refund: httplimit.OnFailure, Headers: httplimit.None}, "<nil>"},
		{nil, httplimit.Config{Key: key}, "limiter is nil"},
		{memory, httplimit.Config{}, "Config.Key is nil"},
		{memory, httplimit.Config{Key: key, Headers: 3}, "Config.Headers is 3"},
		{memory, httplimit.Config{Key: key, Headers: -1}, "Config.Headers is -1"},
		{memory, httplimit.Config{Key: key, Requests: requests, Limit: limit}, "Config.Limit and Config.Requests"},
		{plain, httplimit.Config{Key: key}, "<nil>"},
		{plain, httplimit.Config{Key: key, Refund: httplimit.OnFailure}, "Config.Refund is set, but the strategy memory"},
		{plain, httplimit.Config{Key: key, Requests: requests}, "Config.Requests is set, but pglimit: the strategy memory"},
		{blocking, httplimit.Config{Key: key, Requests: requests}, "login has a Block, and takes no groups: limit twice"},
	} {
		func() {
			defer func() {
				if what := fmt.Sprint(recover()); !strings.Contains(what, c.want) {
					t.Errorf("New panicked with %s, want %s", what, c.want)
				}
			}()
			httplimit.New(c.limiter, c.config)
		}()
	}
}

// Tokens that are left out are the Cost of this request, and the caller's requests are not written to.
func TestTheCostOfSeveralLimits(t *testing.T) {
	t.Parallel()
	shared := []pglimit.Request{{Key: "all"}, {Limiter: "two", Key: "all", Tokens: 2}}
	config := everybody
	config.Requests = func(*http.Request, string) []pglimit.Request { return shared }
	config.Cost = func(r *http.Request) int64 { n, _ := strconv.ParseInt(r.URL.Query().Get("cost"), 10, 64); return n }
	url := served(t, httplimit.New(limited(t, pglimit.PerHour(10)), config)(fine))
	get(t, url+"?cost=3").expect(t, 200, "RateLimit", `"api";r=7;t=2520, "two";r=8;t=2880`)
	get(t, url+"?cost=1").expect(t, 200, "RateLimit", `"api";r=6;t=2160, "two";r=6;t=2160`)
	if shared[0].Tokens != 0 || shared[1].Tokens != 2 {
		t.Errorf("the caller's requests are %+v", shared)
	}
}

func TestSkipCostAndLimit(t *testing.T) {
	t.Parallel()
	plans := map[string]pglimit.Limit{"gold": pglimit.PerMinute(100)}
	config := httplimit.Config{
		Key:  httplimit.Header("X-User"),
		Skip: func(r *http.Request) bool { return r.URL.Path == "/healthz" },
		Cost: func(r *http.Request) int64 {
			n, _ := strconv.ParseInt(r.URL.Query().Get("items"), 10, 64)
			return max(1, n)
		},
		Limit: func(r *http.Request) pglimit.Limit { return plans[r.Header.Get("X-Plan")] },
	}
	url := served(t, httplimit.New(limited(t, pglimit.PerMinute(10)), config)(fine))
	get(t, url+"/healthz").expect(t, 200, "RateLimit", "") // without a key
	get(t, url, "X-User", "1").expect(t, 200, "RateLimit", `"api";r=9;t=54`)
	get(t, url+"?items=7", "X-User", "1").expect(t, 200, "RateLimit", `"api";r=2;t=12`)
	get(t, url+"?items=3", "X-User", "1").expect(t, 429, "RateLimit", `"api";r=2;t=6`, "Retry-After", "6")
	get(t, url, "X-User", "2", "X-Plan", "gold").expect(t, 200, "RateLimit", `"api";r=99;t=60`, "RateLimit-Policy", `"api";q=100;w=60`)
}
