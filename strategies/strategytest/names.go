package strategytest

import (
	"errors"
	"strings"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

func anyScript(s *suite) {
	limit := s.needs(slow(1))
	keys := []string{
		"user:42", "ключ", "鍵", "مفتاح", "🔑👩‍👩‍👧", "e\u0301", "é", " ", "\t\n\r", "a b",
		`it's`, `"quoted"`, `back\slash`, `\x00`, `%s%d%`, `100%`, "_", "$1", ":name", "?", ";--", "/*", "{a,b}", "NULL", "null",
		strings.Repeat("k", 512), strings.Repeat("é", 256), strings.Repeat("x", rate.MaxKeyBytes),
		strings.Repeat("🔑", rate.MaxKeyBytes/4),
	}
	var requests []rate.Request
	for _, key := range keys {
		s.wants(s.take(key, limit, 1, 1), 1, 0)
		requests = append(requests, s.ask(key, limit, 1, 1))
	}
	for i, d := range s.takeAll(s.session, requests...) {
		if d.Allowed {
			s.Errorf("key %q was not recognised", keys[i])
		}
	}
	longest := s.ask("k", limit, 1, 1)
	longest.Limiter = strings.Repeat("l", rate.MaxLimiterBytes)
	longest.Key = strings.Repeat("m", rate.MaxKeyBytes)
	s.takeAll(s.session, longest)
	if able, is := s.strategy.(rate.Resetter); is {
		if err := able.Reset(s.Context(), s.session, longest.Limiter, longest.Key); err != nil {
			s.Error(err)
		}
	}
}

func apart(s *suite) {
	limit := s.needs(slow(1))
	for _, name := range []struct{ limiter, key string }{{"a", "b"}, {"b", "a"}, {"ab", "a"}, {"a", "ab"}, {"A", "b"}} {
		r := s.ask(name.key, limit, 1, 1)
		r.Limiter = s.limiter + name.limiter
		s.wants(s.takeAll(s.session, r)[0], 1, 0)
	}
}

// refuses checks that a call with a request that makes no sense is an error that names the
// field. Spoils are named for it: "Key: too long".
func refuses[R any](s *suite, good R, spoils map[string]func(*R), call func(R) error) {
	s.Helper()
	for name, spoil := range spoils {
		bad := good
		spoil(&bad)
		err, field := call(bad), ""
		if request := (*rate.RequestError)(nil); errors.As(err, &request) {
			field = request.Field
		} else if limited := (*rate.LimitError)(nil); errors.As(err, &limited) {
			field = limited.Field
		} else if block := (*rate.BlockError)(nil); errors.As(err, &block) {
			field = block.Field
		}
		if want, _, _ := strings.Cut(name, ":"); field != want {
			s.Errorf("%s: the error is %v", name, err)
		}
	}
}

func badRequests(s *suite) {
	limit := s.needs(slow(1))
	good := s.ask("good", limit, 1, 1)
	refuses(s, good, map[string]func(*rate.Request){
		"Key: NUL":                func(r *rate.Request) { r.Key = "a\x00b" },
		"Key: not UTF-8":          func(r *rate.Request) { r.Key = "\xff" },
		"Key: none":               func(r *rate.Request) { r.Key = "" },
		"Key: too long":           func(r *rate.Request) { r.Key = strings.Repeat("k", rate.MaxKeyBytes+1) },
		"Limiter: NUL":            func(r *rate.Request) { r.Limiter = "\x00" },
		"Limiter: none":           func(r *rate.Request) { r.Limiter = "" },
		"Limiter: too long":       func(r *rate.Request) { r.Limiter = strings.Repeat("k", rate.MaxLimiterBytes+1) },
		"Tokens: negative":        func(r *rate.Request) { r.Tokens, r.Unit = -1, -1 },
		"Unit: negative":          func(r *rate.Request) { r.Unit = -1 },
		"Unit: none":              func(r *rate.Request) { r.Unit = 0 },
		"Tokens: more than burst": func(r *rate.Request) { r.Tokens, r.Unit = 2, 2 },
		"Tokens: of the limit":    func(r *rate.Request) { r.Limit = rate.PerSecond(0) },
		"Period: none":            func(r *rate.Request) { r.Limit.Period = 0 },
		"Burst: negative":         func(r *rate.Request) { r.Limit.Burst = -1 },
		"Tokens: too fast":        func(r *rate.Request) { r.Limit = rate.Limit{Tokens: 2, Period: 1, Burst: 1} },
		"Durability: no such":     func(r *rate.Request) { r.Durability = 7 },
	}, func(bad rate.Request) error {
		_, err := s.strategy.Take(s.Context(), s.session, []rate.Request{good, bad})
		return err
	})
	s.wants(s.take("good", limit, 1, 1), 1, 0) // none of the calls took it
	if able, is := s.strategy.(rate.Resetter); is {
		refuses(s, "good", map[string]func(*string){
			"Key: none": func(key *string) { *key = "" },
			"Key: NUL":  func(key *string) { *key = "a\x00b" },
		}, func(key string) error { return able.Reset(s.Context(), s.session, s.limiter, key) })
	}
}
