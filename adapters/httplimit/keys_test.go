package httplimit_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/pglimit/ratelimit/adapters/httplimit"
	"github.com/pglimit/ratelimit/pglimit"
)

func TestKeys(t *testing.T) {
	t.Parallel()
	user := httplimit.Subject("user", func(r *http.Request) string { return r.Header.Get("X-User") })
	address := httplimit.ClientIP(httplimit.Proxies{})
	broken := func(*http.Request) (string, error) { return "", errBroken }
	empty := httplimit.Constant("")
	for name, c := range map[string]struct {
		key    httplimit.KeyFunc
		header []string
		want   string
		err    error
	}{
		"subject":                 {user, []string{"X-User", "42"}, "user:42", nil},
		"no subject":              {user, nil, "", httplimit.ErrNoKey},
		"header":                  {httplimit.Header("x-api-KEY"), []string{"X-Api-Key", "5f2e"}, "x-api-key:5f2e", nil},
		"no header":               {httplimit.Header("X-Api-Key"), nil, "", httplimit.ErrNoKey},
		"empty header":            {httplimit.Header("X-Api-Key"), []string{"X-Api-Key", ""}, "", httplimit.ErrBadRequest},
		"header twice":            {httplimit.Header("X-Api-Key"), []string{"X-Api-Key", "1", "X-Api-Key", "2"}, "", httplimit.ErrBadRequest},
		"constant":                {httplimit.Constant("all"), nil, "all", nil},
		"no route":                {httplimit.Route, nil, "", httplimit.ErrNoKey},
		"joined":                  {httplimit.Join(user, address), []string{"X-User", "42"}, "user:42|ip:192.0.2.1", nil},
		"joined, escaped":         {httplimit.Join(user, httplimit.Header("X-B")), []string{"X-User", "4|2%", "X-B", "|"}, "user:4%7C2%25|x-b:%7C", nil},
		"joined, one missing":     {httplimit.Join(address, user), nil, "", httplimit.ErrNoKey},
		"joined, one empty":       {httplimit.Join(address, empty), nil, "", httplimit.ErrNoKey},
		"joined, one broken":      {httplimit.Join(address, broken), nil, "", errBroken},
		"first":                   {httplimit.FirstOf(user, address), []string{"X-User", "42"}, "user:42", nil},
		"second":                  {httplimit.FirstOf(user, address), nil, "ip:192.0.2.1", nil},
		"none of the two":         {httplimit.FirstOf(user, httplimit.Header("X-B")), nil, "", httplimit.ErrNoKey},
		"first broken":            {httplimit.FirstOf(broken, address), nil, "", errBroken},
		"first twice":             {httplimit.FirstOf(httplimit.Header("X-User"), address), []string{"X-User", "1", "X-User", "2"}, "", httplimit.ErrBadRequest},
		"first of none":           {httplimit.FirstOf(), nil, "", httplimit.ErrNoKey},
		"hashed":                  {httplimit.Hashed(user, nil), []string{"X-User", "42"}, "KZstqN3-3H8LJ75tTQhwgGBrnZiSfHZFjzBwO2iz8Ek", nil},
		"hashed, with a secret":   {httplimit.Hashed(user, []byte("0123456789abcdef")), []string{"X-User", "42"}, "", nil},
		"hashed, without subject": {httplimit.Hashed(user, nil), nil, "", httplimit.ErrNoKey},
		"hashed, empty":           {httplimit.Hashed(empty, nil), nil, "", nil},
	} {
		request := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
		for i := 0; i < len(c.header); i += 2 {
			request.Header.Add(c.header[i], c.header[i+1])
		}
		got, err := c.key(request)
		if name == "hashed, with a secret" {
			if len(got) != 43 || strings.HasPrefix(got, "KZst") {
				t.Error(got)
			}
			continue
		}
		if got != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s: %q, %v, want %q, %v", name, got, err, c.want, c.err)
		}
	}
}

func TestHashedKeepsItsSecret(t *testing.T) {
	t.Parallel()
	secret := []byte("0123456789abcdef")
	key := httplimit.Hashed(httplimit.Constant("a"), secret)
	before, _ := key(nil)
	clear(secret) // the caller's slice
	if after, err := key(nil); after != before || err != nil {
		t.Errorf("%q, %v, want %q", after, err, before)
	}
}

var errBroken = errors.New("broken")

func TestRoute(t *testing.T) {
	t.Parallel()
	limit := httplimit.New(limited(t, pglimit.PerHour(1)), httplimit.Config{Key: httplimit.Route, Logger: new(logged).logger()})
	mux := http.NewServeMux()
	mux.Handle("GET /users/{id}", limit(fine))
	mux.Handle("GET /orgs/{id}", limit(fine))
	url := served(t, mux)
	get(t, url+"/users/1").expect(t, 200)
	get(t, url+"/users/2").expect(t, 429)
	get(t, url+"/orgs/2").expect(t, 200)
	get(t, served(t, limit(mux))+"/orgs/2").expect(t, 500)
}

// Different parts never make the same key.
func FuzzJoin(f *testing.F) {
	f.Add("a", "b|c", "a|b", "c")
	f.Add("a%7C", "b", "a|", "b")
	f.Add("%", "|", "%25", "%7C")
	f.Fuzz(func(t *testing.T, a, b, c, d string) {
		join := func(a, b string) string {
			key, err := httplimit.Join(httplimit.Constant(a), httplimit.Constant(b))(nil)
			if (err != nil) != (a == "" || b == "") {
				t.Fatal(err)
			}
			if utf8.ValidString(a) && utf8.ValidString(b) && !utf8.ValidString(key) {
				t.Fatalf("%q", key)
			}
			return key
		}
		if one, two := join(a, b), join(c, d); (one == two) != (a == c && b == d) && one != "" && two != "" {
			t.Fatalf("%q and %q, %q and %q: %q", a, b, c, d, one)
		}
	})
}
