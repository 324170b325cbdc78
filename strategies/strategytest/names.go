package strategytest

import (
	"errors"
	"strings"

	"github.com/pglimit/ratelimit/pglimit"
)

func anyScript(s *suite) {
	limit := s.needs(slow(1))
	keys := []string{
		"user:42", "ключ", "鍵", "مفتاح", "🔑👩‍👩‍👧", "e\u0301", "é", " ", "\t\n\r", "a b",
		`it's`, `"quoted"`, `back\slash`, `\x00`, `%s%d%`, `100%`, "_", "$1", ":name", "?", ";--", "/*", "{a,b}", "NULL", "null",
		strings.Repeat("k", 512), strings.Repeat("é", 256), strings.Repeat("x", pglimit.MaxKeyBytes),
		strings.Repeat("🔑", pglimit.MaxKeyBytes/4),
	}
	var requests []pglimit.Request
	for _, key := range keys {
		s.wants(s.take(key, limit, 1, 1), 1, 0)
		requests = append(requests, s.ask(key, limit, 1, 1))
	}
	for i, d := range s.takeAll(s.pool, requests...) {
		if d.Allowed {
			s.Errorf("key %q was not recognised", keys[i])
		}
	}
	longest := s.ask("k", limit, 1, 1)
	longest.Limiter = strings.Repeat("l", pglimit.MaxLimiterBytes)
	longest.Key = strings.Repeat("m", pglimit.MaxKeyBytes)
	s.takeAll(s.pool, longest)
	if err := s.strategy.Reset(s.Context(), s.pool, longest.Limiter, longest.Key); err != nil {
		s.Error(err)
	}
}

func apart(s *suite) {
	limit := s.needs(slow(1))
	for _, name := range []struct{ limiter, key string }{{"a", "b"}, {"b", "a"}, {"ab", "a"}, {"a", "ab"}, {"A", "b"}} {
		r := s.ask(name.key, limit, 1, 1)
		r.Limiter = s.limiter + name.limiter
		s.wants(s.takeAll(s.pool, r)[0], 1, 0)
	}
}

func badRequests(s *suite) {
	limit := s.needs(slow(1))
	good := s.ask("good", limit, 1, 1)
	for name, spoil := range map[string]func(*pglimit.Request){
		"NUL in the key":     func(r *pglimit.Request) { r.Key = "a\x00b" },
		"key not UTF-8":      func(r *pglimit.Request) { r.Key = "\xff" },
		"no key":             func(r *pglimit.Request) { r.Key = "" },
		"key too long":       func(r *pglimit.Request) { r.Key = strings.Repeat("k", pglimit.MaxKeyBytes+1) },
		"NUL in the limiter": func(r *pglimit.Request) { r.Limiter = "\x00" },
		"no limiter":         func(r *pglimit.Request) { r.Limiter = "" },
		"limiter too long":   func(r *pglimit.Request) { r.Limiter = strings.Repeat("k", pglimit.MaxLimiterBytes+1) },
		"negative cost":      func(r *pglimit.Request) { r.Tokens, r.Unit = -1, -1 },
		"negative unit":      func(r *pglimit.Request) { r.Unit = -1 },
		"no unit":            func(r *pglimit.Request) { r.Unit = 0 },
		"more than burst":    func(r *pglimit.Request) { r.Tokens, r.Unit = 2, 2 },
		"a limit of zero":    func(r *pglimit.Request) { r.Limit = pglimit.PerSecond(0) },
		"no period":          func(r *pglimit.Request) { r.Limit.Period = 0 },
		"negative burst":     func(r *pglimit.Request) { r.Limit.Burst = -1 },
		"too fast":           func(r *pglimit.Request) { r.Limit = pglimit.Limit{Tokens: 2, Period: 1, Burst: 1} },
		"no such durability": func(r *pglimit.Request) { r.Durability = 7 },
	} {
		bad := good
		spoil(&bad)
		_, err := s.strategy.Take(s.Context(), s.pool, []pglimit.Request{good, bad})
		var request *pglimit.RequestError
		var limited *pglimit.LimitError
		if !errors.As(err, &request) && !errors.As(err, &limited) {
			s.Errorf("%s: the error is %v", name, err)
		}
	}
	s.wants(s.take("good", limit, 1, 1), 1, 0) // none of the calls took it
	for _, key := range []string{"", "a\x00b"} {
		if err := s.strategy.Reset(s.Context(), s.pool, s.limiter, key); err == nil {
			s.Errorf("Reset of %q is not an error", key)
		}
	}
}
