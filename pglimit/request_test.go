package pglimit_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/pglimit/ratelimit/pglimit"
)

// request is one that is in order, changed.
func request(change func(*pglimit.Request)) pglimit.Request {
	r := pglimit.Request{Limiter: "api", Key: "user:42", Limit: pglimit.PerSecond(10).WithBurst(20), Tokens: 1, Unit: 1}
	if change != nil {
		change(&r)
	}
	return r
}

func TestRequestsInOrder(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*pglimit.Request){
		"one token":                       nil,
		"the whole burst":                 func(r *pglimit.Request) { r.Tokens, r.Unit = 20, 20 },
		"as much as there is":             func(r *pglimit.Request) { r.Tokens = math.MaxInt64 },
		"tokens not a multiple of a unit": func(r *pglimit.Request) { r.Tokens, r.Unit = 10, 3 },
		"a peek":                          func(r *pglimit.Request) { r.Tokens = 0 },
		"a peek at the burst":             func(r *pglimit.Request) { r.Tokens, r.Unit = 0, 20 },
		"a peek without a unit":           func(r *pglimit.Request) { r.Tokens, r.Unit = 0, 0 },
		"durable":                         func(r *pglimit.Request) { r.Durability = pglimit.Durable },
		"the longest key":                 func(r *pglimit.Request) { r.Key = strings.Repeat("k", pglimit.MaxKeyBytes) },
		"the longest name":                func(r *pglimit.Request) { r.Limiter = strings.Repeat("l", pglimit.MaxLimiterBytes) },
		"a key of one space":              func(r *pglimit.Request) { r.Key = " " },
		"any script and punctuation":      func(r *pglimit.Request) { r.Key = "Ω用户'\"\\%_😀\n\u200b" },
	} {
		if err := request(change).Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRequestsThatNoBucketCouldAnswer(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		change func(*pglimit.Request)
		want   string
	}{
		{func(r *pglimit.Request) { r.Limiter = "" },
			`pglimit: Request.Limiter is empty: name it, with a constant if there is only one`},
		{func(r *pglimit.Request) { r.Limiter = strings.Repeat("l", 129) },
			`pglimit: Request.Limiter has 129 bytes: at most 128 are allowed (hash what is longer)`},
		{func(r *pglimit.Request) { r.Limiter = "a\x00b" },
			`pglimit: Request.Limiter "a\x00b" has a NUL byte, which Postgres cannot store`},
		{func(r *pglimit.Request) { r.Limiter = "\xff" },
			`pglimit: Request.Limiter "\xff" is not valid UTF-8: encode bytes, as hex for instance`},
		{func(r *pglimit.Request) { r.Key = "" },
			`pglimit: Request.Key is empty: name it, with a constant if there is only one`},
		{func(r *pglimit.Request) { r.Key = strings.Repeat("k", 1025) },
			`pglimit: Request.Key has 1025 bytes: at most 1024 are allowed (hash what is longer)`},
		{func(r *pglimit.Request) { r.Key = strings.Repeat("é", 513) }, // bytes, not letters
			`pglimit: Request.Key has 1026 bytes: at most 1024 are allowed (hash what is longer)`},
		{func(r *pglimit.Request) { r.Key = "\x00" },
			`pglimit: Request.Key "\x00" has a NUL byte, which Postgres cannot store`},
		{func(r *pglimit.Request) { r.Key = "half an é: \xc3" },
			`pglimit: Request.Key "half an é: \xc3" is not valid UTF-8: encode bytes, as hex for instance`},
		{func(r *pglimit.Request) { r.Key = "a surrogate: \xed\xa0\x80" },
			`pglimit: Request.Key "a surrogate: \xed\xa0\x80" is not valid UTF-8: encode bytes, as hex for instance`},
		{func(r *pglimit.Request) { r.Limit = pglimit.Limit{} },
			`pglimit: Limit.Tokens is 0: it must be at least 1`},
		{func(r *pglimit.Request) { r.Tokens = -1 },
			`pglimit: Request.Tokens is -1: it must not be negative`},
		{func(r *pglimit.Request) { r.Unit = -1 },
			`pglimit: Request.Unit is -1: it must not be negative`},
		{func(r *pglimit.Request) { r.Unit = 0 },
			`pglimit: Request.Unit is 0: set it to Tokens for all or nothing`},
		{func(r *pglimit.Request) { r.Tokens, r.Unit = 21, 21 },
			`pglimit: Request.Tokens is 21: more than the burst of 20 (10/1s burst 20) could never be granted`},
		{func(r *pglimit.Request) { r.Tokens, r.Unit = 0, 21 },
			`pglimit: Request.Unit is 21: more than the burst of 20 (10/1s burst 20) could never be granted`},
		{func(r *pglimit.Request) { r.Tokens, r.Unit = 2, 3 },
			`pglimit: Request.Unit is 3: it must not be larger than Tokens, which is 2`},
		{func(r *pglimit.Request) { r.Durability = 7 },
			`pglimit: Request.Durability is 7: it must be Relaxed or Durable`},
	} {
		err := request(test.change).Validate()
		if err == nil || err.Error() != test.want {
			t.Errorf("got  %v\nwant %s", err, test.want)
		}
		var bad *pglimit.RequestError
		var limit *pglimit.LimitError
		if !errors.As(err, &bad) && !errors.As(err, &limit) {
			t.Errorf("%T", err)
		}
	}
}

func TestDurability(t *testing.T) {
	t.Parallel()
	var zero pglimit.Durability
	if zero != pglimit.Relaxed {
		t.Error("the zero value is not Relaxed")
	}
	for text, want := range map[string]pglimit.Durability{"relaxed": pglimit.Relaxed, "durable": pglimit.Durable} {
		got, err := pglimit.ParseDurability(text)
		if err != nil || got != want || got.String() != text {
			t.Errorf("%q is %v, %v", text, got, err)
		}
	}
	if got := pglimit.Durability(7).String(); got != "Durability(7)" {
		t.Error(got)
	}
	for _, text := range []string{"", "Relaxed", "sometimes", "Durability(7)"} {
		_, err := pglimit.ParseDurability(text)
		if want := `pglimit: durability "` + text + `": it must be relaxed or durable`; err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
