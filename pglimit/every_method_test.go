package pglimit_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
)

// Every request is counted once and heard once, whichever way it goes.
func TestEveryCallIsCountedAndHeardOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var heard int
		memory := pglimittest.MemoryOn(time.Now)
		counting := func(c *pglimit.Config) {
			c.Limit = pglimit.PerHour(5)
			c.OnDecision = func(context.Context, pglimit.Request, pglimit.Decision, error) { heard++ }
		}
		limiter := onMemory(t, memory, counting)
		local := onMemory(t, memory, func(c *pglimit.Config) { counting(c); c.OnError = pglimit.FailLocal(1) })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		calls := []struct {
			name    string
			counted int64
			heard   int
			call    func(l *pglimit.Limiter) error
		}{
			{"Allow", 1, 1, func(l *pglimit.Limiter) error { _, err := l.Allow(ctx, "k"); return err }},
			{"Peek", 1, 1, func(l *pglimit.Limiter) error { _, err := l.Peek(ctx, "k"); return err }},
			{"Do with a limit", 1, 1, func(l *pglimit.Limiter) error {
				_, err := l.Do(ctx, pglimit.Request{Key: "k", Limit: pglimit.PerHour(6), Tokens: 1})
				return err
			}},
			{"Do with an ID", 1, 1, func(l *pglimit.Limiter) error {
				_, err := l.Do(ctx, pglimit.Request{Key: "k", Tokens: 1, ID: "id"})
				return err
			}},
			{"Reserve", 1, 1, func(l *pglimit.Limiter) error { _, err := l.Reserve(ctx, "k"); return err }},
			{"Wait", 1, 1, func(l *pglimit.Limiter) error {
				_, err := l.Wait(ctx, "k")
				return err
			}},
			{"Take", 4, 4, func(l *pglimit.Limiter) error {
				_, err := l.DoEach(ctx, pglimit.Request{Key: "k", Tokens: 1, ID: "i"}, pglimit.Request{Key: "k"},
					pglimit.Request{Key: "l", Tokens: 2, Unit: 1, Ahead: time.Hour}, pglimit.Request{Key: "l", Tokens: 1, Limit: pglimit.PerHour(9)})
				return err
			}},
			{"DoAll", 1, 2, func(l *pglimit.Limiter) error {
				_, err := l.DoAll(ctx, pglimit.Request{Key: "k", Tokens: 4}, pglimit.Request{Key: "m", Tokens: 1})
				return err
			}},
			{"Refund", 0, 0, func(l *pglimit.Limiter) error {
				return l.Refund(ctx, pglimit.Decision{Limiter: "api", Key: "k", Limit: pglimit.PerHour(5), Granted: 1, At: time.Now()}, 1)
			}},
		}
		check := func(what string, l *pglimit.Limiter, decided, failed int64) { // of each request
			for _, c := range calls {
				before := l.Stats()
				heard = 0
				if err := c.call(l); (err != nil) != (failed > 0 && (decided == 0 || c.name == "Refund")) {
					t.Errorf("%s, %s: %v", what, c.name, err)
				}
				s := l.Stats().Since(before)
				if s.Allowed.Total()+s.Denied.Total() != decided*c.counted || s.Failed.Total() != failed*c.counted || heard != c.heard {
					t.Errorf("%s, %s: heard %d times, %+v", what, c.name, heard, s)
				}
			}
		}
		check("up", limiter, 1, 0)
		memory.Fail(pglimit.ErrUnavailable)
		check("down", limiter, 0, 1)
		check("decided here", local, 1, 1)
		memory.Fail(nil)
	})
}

// Every method refuses what makes no sense, with a sentence that names the field and the value, and
// asks nobody.
func TestEveryMethodRefusesNonsense(t *testing.T) {
	t.Parallel()
	methods := map[string]func(ctx context.Context, l *pglimit.Limiter, key string, n int64) error{
		"AllowN": func(ctx context.Context, l *pglimit.Limiter, key string, n int64) error {
			_, err := l.AllowN(ctx, key, n)
			return err
		},
		"Do": func(ctx context.Context, l *pglimit.Limiter, key string, n int64) error {
			_, err := l.Do(ctx, pglimit.Request{Key: key, Limit: pglimit.PerHour(5), Tokens: n})
			return err
		},
		"WaitN": func(ctx context.Context, l *pglimit.Limiter, key string, n int64) error {
			_, err := l.WaitN(ctx, key, n)
			return err
		},
		"ReserveN": func(ctx context.Context, l *pglimit.Limiter, key string, n int64) error {
			_, err := l.ReserveN(ctx, key, n)
			return err
		},
		"DoEach": func(ctx context.Context, l *pglimit.Limiter, key string, n int64) error {
			_, err := l.DoEach(ctx, pglimit.Request{Key: "good", Tokens: 1}, pglimit.Request{Key: key, Tokens: n})
			return err
		},
		"with an ID": func(ctx context.Context, l *pglimit.Limiter, key string, n int64) error {
			_, err := l.DoEach(ctx, pglimit.Request{Key: "good", Tokens: 1, ID: "id"}, pglimit.Request{Key: key, Tokens: n, ID: "id"})
			return err
		},
		"DoAll": func(ctx context.Context, l *pglimit.Limiter, key string, n int64) error {
			_, err := l.DoAll(ctx, pglimit.Request{Key: "good", Tokens: 1}, pglimit.Request{Key: key, Tokens: n})
			return err
		},
		"Peek": func(ctx context.Context, l *pglimit.Limiter, key string, _ int64) error {
			_, err := l.Peek(ctx, key)
			return err
		},
		"Reset": func(ctx context.Context, l *pglimit.Limiter, key string, _ int64) error { return l.Reset(ctx, key) },
		"Refund": func(ctx context.Context, l *pglimit.Limiter, key string, n int64) error {
			return l.Refund(ctx, pglimit.Decision{Limiter: "api", Key: "good", Limit: l.Limit(), Granted: 5, At: time.Now()}, n)
		},
	}
	for name, call := range methods {
		for _, bad := range []struct {
			key   string
			n     int64
			field string
			value string
		}{
			{"", 1, "Key", "is empty"},
			{"a\x00b", 1, "Key", `"a\x00b" has a NUL byte`},
			{"\xff", 1, "Key", `"\xff" is not valid UTF-8`},
			{strings.Repeat("k", 1025), 1, "Key", "has 1025 bytes: at most 1024"},
			{"k", -1, "Tokens", "is -1"},
			{"k", 0, "Tokens", "is 0"},
			{"k", 6, "Tokens", "is 6"},
		} {
			if name == "Refund" && bad.field == "Key" || bad.n == 0 && (name == "Do" || name == "DoEach") ||
				bad.field == "Tokens" && (name == "Peek" || name == "Reset") {
				continue // the key is that of the decision; 0 is a peek
			}
			memory := pglimittest.Memory()
			limiter, err := pglimittest.New(memory, config(func(c *pglimit.Config) { c.Limit, c.MaxWait = pglimit.PerHour(5), time.Hour }))
			if err != nil {
				t.Fatal(err)
			}
			err = call(t.Context(), limiter, bad.key, bad.n)
			field := bad.field
			if name == "with an ID" && bad.n == 0 {
				field, bad.value = "ID", `is "id"`
			}
			var refused *pglimit.RequestError
			if !errors.As(err, &refused) || refused.Field != field || !strings.Contains(refused.Why, bad.value) {
				t.Errorf("%s of %d: %v, want Request.%s %s", name, bad.n, err, field, bad.value)
			}
			if trips := limiter.Stats().RoundTrips; trips > 0 {
				t.Errorf("%s of %d: %d round trips", name, bad.n, trips)
			}
		}
	}
}

// Fields that do not go together are refused.
func TestFieldsThatDoNotGoTogether(t *testing.T) {
	t.Parallel()
	limiter, err := pglimittest.New(pglimittest.Memory(), config(func(c *pglimit.Config) { c.MaxWait = time.Hour }))
	if err != nil {
		t.Fatal(err)
	}
	do := func(ctx context.Context, r pglimit.Request) error {
		_, err := limiter.Do(ctx, r)
		return err
	}
	each := func(ctx context.Context, r pglimit.Request) error {
		_, err := limiter.DoEach(ctx, r)
		return err
	}
	all := func(ctx context.Context, r pglimit.Request) error {
		_, err := limiter.DoAll(ctx, r)
		return err
	}
	for _, test := range []struct {
		ask   func(context.Context, pglimit.Request) error
		r     pglimit.Request
		field string
	}{
		{each, pglimit.Request{MaxWait: 1}, "MaxWait"}, {all, pglimit.Request{MaxWait: -1}, "MaxWait"}, {all, pglimit.Request{MaxWait: 1, Ahead: 1}, "Ahead"},
		{do, pglimit.Request{MaxWait: 1, Ahead: 1}, "MaxWait"}, {do, pglimit.Request{MaxWait: 1, ID: "id"}, "MaxWait"}, {do, pglimit.Request{MaxWait: 1, Unit: 2}, "MaxWait"},
		{do, pglimit.Request{ID: "id", Ahead: 1}, "ID"}, {all, pglimit.Request{ID: "id"}, "ID"},
	} {
		test.r.Key, test.r.Tokens = "k", 4
		err := test.ask(t.Context(), test.r)
		if refused := (*pglimit.RequestError)(nil); !errors.As(err, &refused) || refused.Field != test.field {
			t.Errorf("%+v: %v, want %s", test.r, err, test.field)
		}
	}
	if trips := limiter.Stats().RoundTrips; trips != 0 {
		t.Errorf("%d round trips", trips)
	}
}
