package serve

import (
	"crypto/sha256"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
)

// What a token may do. A request that names one limiter too many takes nothing from the others.
func TestTokensAreForRightsAndLimiters(t *testing.T) {
	t.Parallel()
	const decision = `{"decision":{"limiter":"login","key":"k","granted":1,"limit":"2/1m","at":"2026-01-01T00:00:00Z","source":"database"},"tokens":1}`
	const both, bothAsOne = `{"requests":[{"limiter":"api","key":"k"},{"limiter":"login","key":"k"}]}`, `{"requests":[{"limiter":"api","key":"k"},{"limiter":"login","key":"k"}],"all":true}`
	const api, login, lacks = `{"limiter":"api","key":"k"}`, `{"limiter":"login","key":"k"}`, "the token lacks the right "
	const gateway = "/v1/gateway" // asks for login
	for line, tests := range map[string][]struct {
		path, body string
		status     int
		field      string
		words      string
	}{
		"0123456789abcdef": {
			{"/v1/allow", api, 200, "", ""}, {"/v1/reset", login, 200, "", ""}, {"/v1/peek", login, 200, "", ""}, {"/v1/top", "", 503, "", ""},
		},
		"0123456789abcdef decide": {
			{"/v1/allow", bothAsOne, 200, "", ""}, {"/v1/peek", api, 200, "", ""}, {"/v1/refund", decision, 200, "", ""}, {"/v1/settle", decision, 200, "", ""}, {gateway, "", 200, "", ""},
			{"/v1/reset", api, 403, "", lacks + "administer"}, {"/v1/top", "", 403, "", lacks + "read"}, {"/v1/top?limiter=api", "", 403, "", lacks + "read"},
		},
		"0123456789abcdef read": {
			{"/v1/peek", both, 200, "", ""}, {"/v1/top", "", 503, "", ""},
			{"/v1/allow", api, 403, "", lacks + "decide"}, {"/v1/allow", "not JSON", 403, "", lacks + "decide"}, {"/v1/refund", decision, 403, "", lacks + "decide"},
			{"/v1/settle", decision, 403, "", lacks + "decide"}, {"/v1/reset", api, 403, "", lacks + "administer"}, {gateway, "", 500, "", "not set up properly"},
		},
		"0123456789abcdef administer": {
			{"/v1/reset", api, 200, "", ""}, {"/v1/peek", api, 403, "", lacks + "decide or read"},
		},
		"0123456789abcdef decide,read limiters=api,other": {
			{"/v1/top?limiter=api", "", 503, "", ""},
			{"/v1/allow", login, 403, "limiter", `is \"login\": the token is for api, other only`}, {"/v1/allow", `{"limiter":"no","key":"k"}`, 403, "limiter", "for api, other only"},
			{"/v1/allow", both, 403, "requests[1].limiter", "for api, other only"}, {"/v1/allow", bothAsOne, 403, "requests[1].limiter", "for api, other only"},
			{"/v1/peek", both, 403, "requests[1].limiter", "for api, other only"}, {"/v1/peek", login, 403, "limiter", "for api, other only"},
			{"/v1/refund", decision, 403, "decision.limiter", "for api, other only"}, {"/v1/settle", decision, 403, "decision.limiter", "for api, other only"},
			{"/v1/top", "", 403, "limiter", "is missing: the token is for api, other only"}, {"/v1/top?limiter=login", "", 403, "limiter", "for api, other only"},
			{"/v1/top?limiter=api&limiter=login", "", 400, "", "twice"}, {gateway, "", 500, "", "not set up properly"},
			// It does not learn which others there are.
			{"/v1/allow", `{"key":"k"}`, 400, "limiter", "must be one of api\""}, {"/v1/allow", `{"limiter":"other","key":"k"}`, 404, "limiter", "must be one of api\""},
			{"/v1/allow", api, 200, "", `"remaining":19`}, // which shows that nothing was taken before
		},
		"0123456789abcdef limiters=login": {
			{"/v1/reset", login, 200, "", ""}, {"/v1/reset", api, 403, "limiter", "for login only"}, {gateway, "", 200, "", ""},
		},
	} {
		s := newServer(t, limits, pglimittest.Memory(), line)
		s.config.Top = pglimit.TopFrom(pglimittest.Memory().Pool(), pglimit.TopConfig{}) // cannot be read: where it may be, the status is 503
		for _, test := range tests {
			r := request(http.MethodPost, test.path, test.body)
			if test.body == "" {
				r = request(http.MethodGet, test.path, "")
			}
			r.Header.Set("X-Pglimit-Limiter", "login")
			r.Header.Set("X-Pglimit-Key", test.path)
			r.Header.Set("Authorization", "Bearer 0123456789abcdef")
			w := httptest.NewRecorder()
			if strings.HasPrefix(test.path, topPath) {
				s.top(w, r)
			} else {
				s.handler.ServeHTTP(w, r)
			}
			switch {
			case w.Code != test.status || !strings.Contains(w.Body.String(), test.words):
				t.Errorf("%q: %s %s: %d %s, not %d %s", line, test.path, test.body, w.Code, w.Body, test.status, test.words)
			case w.Code != http.StatusOK:
				isProblem(t, w, test.status, test.field)
			}
		}
	}
}

func TestTokenFile(t *testing.T) {
	t.Parallel()
	const first, second = "first-0123456789abcdef", "second-0123456789abcdef"
	name := filepath.Join(t.TempDir(), "tokens")
	for text, want := range map[string]string{
		"# of the shop\n" + first + "\n\n  # short\n " + second + " \r\n": "all of  all of ",
		first + " decide,read\tlimiters=api,login\n" + second + " read":   "decide or read of api login read of ",
		first + " limiters=api  read\n" + second + " limiters=api":        "read of api all of api",
		"# one\n\nshort\n":                         "line 3: a token must have at least 16 characters",
		"short decide\n":                           "line 1: a token must have at least 16 characters",
		first + "\nwith space 0123456":             "line 2: a token must have at least 16 characters and no spaces",
		first + "\n" + second + " passphrase":      "line 2: after the token may follow its rights, of decide, read, administer with commas",
		first + " decide,\n":                       "line 1: after the token",
		first + " decide read\n":                   "line 1: after the token",
		first + " limiters=\n":                     "line 1: after the token",
		first + " limiters=api, login\n":           "line 1: after the token",
		first + " limiters=api limiters=login\n":   "line 1: after the token",
		first + " Decide\n":                        "line 1: after the token",
		first + " read # dashboard\n":              "line 1: after the token",
		first + " read\n#\n" + first + " decide\n": "line 3: the token of line 1 again",
		"# " + first + "\n":                        "has no token",
	} {
		must(t, os.WriteFile(name, []byte(text), 0o600))
		tokens, err := ReadTokens(name)
		var got []string
		for i, token := range tokens {
			if token.Hash != sha256.Sum256([]byte([]string{first, second}[i])) {
				t.Errorf("%q: the hash of token %d is not its own", text, i)
			}
			got = append(got, strings.Replace(token.Rights.String(), "decide or read or administer", "all", 1)+" of "+strings.Join(token.Limiters, " "))
		}
		switch isError := strings.Contains(want, "token"); {
		case isError && (err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: %v, not %s", text, err, want)
		case !isError && (err != nil || strings.Join(got, " ") != want):
			t.Errorf("%q: %q, %v, not %q", text, got, err, want)
		}
		for word := range strings.FieldsSeq("first second short 0123456 passphrase dashboard login") {
			if err != nil && strings.Contains(strings.ReplaceAll(err.Error(), name, ""), word) {
				t.Errorf("the error quotes the line: %v", err)
			}
		}
	}
}

// A browser that sent a token without the right for the page asks for another one.
func TestThePageAsksForAnotherToken(t *testing.T) {
	s := newServer(t, limits, pglimittest.Memory(), "0123456789abcdef decide")
	pool, err := pgxpool.New(t.Context(), "postgres://127.0.0.1:1/x") // which nothing asks
	must(t, err)
	defer pool.Close()
	s.config.Admin = pool
	r := request(http.MethodGet, adminPath, "")
	r.SetBasicAuth("eve", "0123456789abcdef")
	w := httptest.NewRecorder()
	s.admin().ServeHTTP(w, r)
	isProblem(t, w, http.StatusUnauthorized, "", "lacks the right read or administer")
	if asks := strings.Join(w.Header()["Www-Authenticate"], ""); !strings.Contains(asks, "Basic") {
		t.Error(asks)
	}
}
