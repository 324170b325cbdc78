package httplimit_test

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/adapters/httplimit"
	"github.com/pglimit/ratelimit/pglimit"
)

// The snippets of docs/http.md, each as it stands there.
var _ = snippetStart // is not run: it would take the port

// A customer is what authentication puts into the context in the snippets.
type customer struct {
	ID, Org, Plan string
}

func customerOf(*http.Request) customer { return customer{ID: "42", Org: "7", Plan: "gold"} }

func userID(r *http.Request) string { return customerOf(r).ID }

func snippetKeys(secret []byte) []httplimit.KeyFunc {
	return []httplimit.KeyFunc{
		httplimit.Subject("user", userID),
		httplimit.Header("X-Api-Key"),
		httplimit.Hashed(httplimit.Header("X-Api-Key"), secret),
		httplimit.ClientIP(httplimit.Proxies{}),
		httplimit.Route,
		httplimit.Constant("all"),
		httplimit.Join(httplimit.Subject("user", userID), httplimit.Route),
		httplimit.FirstOf(httplimit.Subject("user", userID), httplimit.ClientIP(httplimit.Proxies{})),
		httplimit.FirstOf(httplimit.Subject("user", userID), httplimit.Unauthorized("Bearer")),
	}
}

func snippetStart(limiter *pglimit.Limiter, mux *http.ServeMux) error {
	limit := httplimit.New(limiter, httplimit.Config{Key: httplimit.ClientIP(httplimit.Proxies{})})
	return http.ListenAndServe("localhost:8080", limit(mux))
}

func snippetOwnKey() httplimit.Config {
	return httplimit.Config{
		Key: func(r *http.Request) (string, error) { return "tenant:" + r.PathValue("tenant"), nil },
	}
}

func snippetProxies() []httplimit.KeyFunc {
	// the load balancer's network: everything in it may say whom a request is from
	byPrefix := httplimit.ClientIP(httplimit.Proxies{Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}})
	// a CDN and a load balancer, whose addresses change
	byCount := httplimit.ClientIP(httplimit.Proxies{Count: 2})
	// a field that the CDN sets itself, on requests from the CDN only; a customer is a /56
	byField := httplimit.ClientIP(httplimit.Proxies{
		Field:    "CF-Connecting-IP",
		Prefixes: []netip.Prefix{netip.MustParsePrefix("173.245.48.0/20"), netip.MustParsePrefix("2400:cb00::/32")},
		IPv6:     56,
	})
	return []httplimit.KeyFunc{byPrefix, byCount, byField}
}

func snippetPlans(limiter *pglimit.Limiter) func(http.Handler) http.Handler {
	plans := map[string]pglimit.Limit{"gold": pglimit.PerMinute(600), "free": pglimit.PerMinute(60)}
	return httplimit.New(limiter, httplimit.Config{
		Key:   httplimit.Subject("user", userID),
		Limit: func(r *http.Request) pglimit.Limit { return plans[customerOf(r).Plan] }, // the zero Limit: the limiter's own
		Cost: func(r *http.Request) int64 {
			if r.Method == http.MethodGet {
				return 1
			}
			return 5
		},
		Skip: func(r *http.Request) bool { return r.Method == http.MethodOptions || r.URL.Path == "/healthz" },
	})
}

func snippetSeveral(limiter *pglimit.Limiter) func(http.Handler) http.Handler {
	return httplimit.New(limiter, httplimit.Config{
		Key: httplimit.Subject("user", userID),
		Requests: func(r *http.Request, key string) []pglimit.Request {
			return []pglimit.Request{
				{Key: key}, // the limiter's own limit
				{Limiter: "api/day", Key: key, Limit: pglimit.Per(1000, 24*time.Hour)},
				{Limiter: "api/org", Key: "org:" + customerOf(r).Org, Limit: pglimit.PerSecond(100)},
			}
		},
	})
}

func snippetRefund(logins *pglimit.Limiter) func(http.Handler) http.Handler {
	return httplimit.New(logins, httplimit.Config{
		Key:    httplimit.ClientIP(httplimit.Proxies{Count: 1}),
		Refund: httplimit.OnSuccess, // only failed logins count
	})
}

func snippetFailed(_ http.ResponseWriter, r *http.Request) {
	httplimit.Failed(r.Context())
}

func snippetSettle(r *http.Request, tokens int64) (int64, error) {
	charged, err := httplimit.Settle(r.Context(), tokens)
	return charged.Granted, err
}

func snippetAnswers(limiter *pglimit.Limiter, key httplimit.KeyFunc) func(http.Handler) http.Handler {
	return httplimit.New(limiter, httplimit.Config{
		Key: key,
		Denied: func(w http.ResponseWriter, _ *http.Request, denial httplimit.Denial) {
			http.Error(w, "Slow down: again in "+denial.RetryAfter.Round(time.Second).String(), http.StatusTooManyRequests)
		},
		Failed: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, "Sorry.", httplimit.StatusOf(err))
		},
	})
}

// The snippets are valid, and answer.
func TestTheSnippetsWork(t *testing.T) {
	t.Parallel()
	limiter := limited(t, pglimit.PerMinute(10))
	request := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
	request.Header.Set("X-Forwarded-For", "192.0.2.7")
	settles := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		snippetFailed(w, r)
		if charged, err := snippetSettle(r, 2); err != nil || charged != 2 {
			t.Error(charged, err)
		}
	})
	for i, middleware := range []func(http.Handler) http.Handler{
		snippetPlans(limiter), snippetRefund(limiter),
		snippetAnswers(limiter, httplimit.FirstOf(append(snippetKeys(nil), snippetProxies()...)...)),
		httplimit.New(limiter, snippetOwnKey()),
	} {
		recorder := httptest.NewRecorder()
		if middleware(settles).ServeHTTP(recorder, request); recorder.Code != http.StatusOK {
			t.Errorf("%d: %d %s", i, recorder.Code, recorder.Body)
		}
	}
	recorder := httptest.NewRecorder()
	if snippetSeveral(limiter)(fine).ServeHTTP(recorder, request); recorder.Code != http.StatusOK {
		t.Error(recorder.Code, recorder.Body)
	}
	recorder = httptest.NewRecorder()
	snippetAnswers(limiter, httplimit.Unauthorized("Bearer"))(fine).ServeHTTP(recorder, request)
	if recorder.Code != http.StatusUnauthorized || recorder.Body.String() != "Sorry.\n" {
		t.Error(recorder.Code, recorder.Body)
	}
}
