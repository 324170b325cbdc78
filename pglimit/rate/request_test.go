package rate_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// request is one that is in order, changed.
func request(change func(*rate.Request)) rate.Request {
	r := rate.Request{Limiter: "api", Key: "user:42", Limit: rate.PerSecond(10).WithBurst(20), Tokens: 1, Unit: 1}
	if change != nil {
		change(&r)
	}
	return r
}

func TestRequestsInOrder(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*rate.Request){
		"one token":                       nil,
		"the whole burst":                 func(r *rate.Request) { r.Tokens, r.Unit = 20, 20 },
		"as much as there is":             func(r *rate.Request) { r.Tokens = math.MaxInt64 },
		"tokens not a multiple of a unit": func(r *rate.Request) { r.Tokens, r.Unit = 10, 3 },
		"a peek":                          func(r *rate.Request) { r.Tokens = 0 },
		"a peek at the burst":             func(r *rate.Request) { r.Tokens, r.Unit = 0, 20 },
		"a peek without a unit":           func(r *rate.Request) { r.Tokens, r.Unit = 0, 0 },
		"durable":                         func(r *rate.Request) { r.Durability = rate.Durable },
		"the longest key":                 func(r *rate.Request) { r.Key = strings.Repeat("k", rate.MaxKeyBytes) },
		"the longest name":                func(r *rate.Request) { r.Limiter = strings.Repeat("l", rate.MaxLimiterBytes) },
		"a key of one space":              func(r *rate.Request) { r.Key = " " },
		"any script and punctuation":      func(r *rate.Request) { r.Key = "Ω用户'\"\\%_😀\n\u200b" },
	} {
		if err := request(change).Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRequestsThatNoBucketCouldAnswer(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		change func(*rate.Request)
		want   string
	}{
		{func(r *rate.Request) { r.Tokens, r.Ahead, r.Block = 0, 1, &rate.Block{} },
			`pglimit: Request.Block is set, for 0 tokens in units of 1, Ahead 1ns: with it, a request takes all or nothing, and nothing ahead`},
		{func(r *rate.Request) { r.Limiter = "" },
			`pglimit: Request.Limiter is empty: name it, with a constant if there is only one`},
		{func(r *rate.Request) { r.Limiter = strings.Repeat("l", 129) },
			`pglimit: Request.Limiter has 129 bytes: at most 128 are allowed (hash what is longer)`},
		{func(r *rate.Request) { r.Limiter = "a\x00b" },
			`pglimit: Request.Limiter "a\x00b" has a NUL byte, which Postgres cannot store`},
		{func(r *rate.Request) { r.Limiter = "\xff" },
			`pglimit: Request.Limiter "\xff" is not valid UTF-8: encode bytes, as hex for instance`},
		{func(r *rate.Request) { r.Key = "" },
			`pglimit: Request.Key is empty: name it, with a constant if there is only one`},
		{func(r *rate.Request) { r.Key = strings.Repeat("k", 1025) },
			`pglimit: Request.Key has 1025 bytes: at most 1024 are allowed (hash what is longer)`},
		{func(r *rate.Request) { r.Key = strings.Repeat("é", 513) }, // bytes, not letters
			`pglimit: Request.Key has 1026 bytes: at most 1024 are allowed (hash what is longer)`},
		{func(r *rate.Request) { r.Key = "\x00" },
			`pglimit: Request.Key "\x00" has a NUL byte, which Postgres cannot store`},
		{func(r *rate.Request) { r.Key = "half an é: \xc3" },
			`pglimit: Request.Key "half an é: \xc3" is not valid UTF-8: encode bytes, as hex for instance`},
		{func(r *rate.Request) { r.Key = "a surrogate: \xed\xa0\x80" },
			`pglimit: Request.Key "a surrogate: \xed\xa0\x80" is not valid UTF-8: encode bytes, as hex for instance`},
		{func(r *rate.Request) { r.Limit = rate.Limit{} },
			`pglimit: Limit.Tokens is 0: it must be at least 1`},
		{func(r *rate.Request) { r.Tokens = -1 },
			`pglimit: Request.Tokens is -1: it must not be negative`},
		{func(r *rate.Request) { r.Unit = -1 },
			`pglimit: Request.Unit is -1: it must not be negative`},
		{func(r *rate.Request) { r.Unit = 0 },
			`pglimit: Request.Unit is 0: set it to Tokens for all or nothing`},
		{func(r *rate.Request) { r.Tokens, r.Unit = 21, 21 },
			`pglimit: Request.Tokens is 21: more than the burst of 20 (10/1s burst 20) could never be granted`},
		{func(r *rate.Request) { r.Tokens, r.Unit = 0, 21 },
			`pglimit: Request.Unit is 21: more than the burst of 20 (10/1s burst 20) could never be granted`},
		{func(r *rate.Request) { r.Tokens, r.Unit = 2, 3 },
			`pglimit: Request.Unit is 3: it must not be larger than Tokens, which is 2`},
		{func(r *rate.Request) { r.Durability = 7 },
			`pglimit: Request.Durability is 7: it must be Relaxed or Durable`},
	} {
		err := request(test.change).Validate()
		if err == nil || err.Error() != test.want {
			t.Errorf("got  %v\nwant %s", err, test.want)
		}
		var bad *rate.RequestError
		var limit *rate.LimitError
		if !errors.As(err, &bad) && !errors.As(err, &limit) {
			t.Errorf("%T", err)
		}
	}
}

func TestDurability(t *testing.T) {
	t.Parallel()
	var zero rate.Durability
	if zero != rate.Relaxed {
		t.Error("the zero value is not Relaxed")
	}
	for text, want := range map[string]rate.Durability{"relaxed": rate.Relaxed, "durable": rate.Durable} {
		got, err := rate.ParseDurability(text)
		if err != nil || got != want || got.String() != text {
			t.Errorf("%q is %v, %v", text, got, err)
		}
	}
	if got := rate.Durability(7).String(); got != "Durability(7)" {
		t.Error(got)
	}
	for _, text := range []string{"", "Relaxed", "sometimes", "Durability(7)"} {
		_, err := rate.ParseDurability(text)
		if want := `pglimit: durability "` + text + `": it must be relaxed or durable`; err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
