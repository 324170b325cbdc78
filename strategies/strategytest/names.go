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

func badRequests(s *suite) {
	limit := s.needs(slow(1))
	good := s.ask("good", limit, 1, 1)
	for name, spoil := range map[string]func(*rate.Request){
		"NUL in the key":     func(r *rate.Request) { r.Key = "a\x00b" },
		"key not UTF-8":      func(r *rate.Request) { r.Key = "\xff" },
		"no key":             func(r *rate.Request) { r.Key = "" },
		"key too long":       func(r *rate.Request) { r.Key = strings.Repeat("k", rate.MaxKeyBytes+1) },
		"NUL in the limiter": func(r *rate.Request) { r.Limiter = "\x00" },
		"no limiter":         func(r *rate.Request) { r.Limiter = "" },
		"limiter too long":   func(r *rate.Request) { r.Limiter = strings.Repeat("k", rate.MaxLimiterBytes+1) },
		"negative cost":      func(r *rate.Request) { r.Tokens, r.Unit = -1, -1 },
		"negative unit":      func(r *rate.Request) { r.Unit = -1 },
		"no unit":            func(r *rate.Request) { r.Unit = 0 },
		"more than burst":    func(r *rate.Request) { r.Tokens, r.Unit = 2, 2 },
		"a limit of zero":    func(r *rate.Request) { r.Limit = rate.PerSecond(0) },
		"no period":          func(r *rate.Request) { r.Limit.Period = 0 },
		"negative burst":     func(r *rate.Request) { r.Limit.Burst = -1 },
		"too fast":           func(r *rate.Request) { r.Limit = rate.Limit{Tokens: 2, Period: 1, Burst: 1} },
		"no such durability": func(r *rate.Request) { r.Durability = 7 },
	} {
		bad := good
		spoil(&bad)
		_, err := s.strategy.Take(s.Context(), s.session, []rate.Request{good, bad})
		var request *rate.RequestError
		var limited *rate.LimitError
		if !errors.As(err, &request) && !errors.As(err, &limited) {
			s.Errorf("%s: the error is %v", name, err)
		}
	}
	s.wants(s.take("good", limit, 1, 1), 1, 0) // none of the calls took it
	able, is := s.strategy.(rate.Resetter)
	for _, key := range []string{"", "a\x00b"} {
		if is && able.Reset(s.Context(), s.session, s.limiter, key) == nil {
			s.Errorf("Reset of %q is not an error", key)
		}
	}
}
