package pglimit_test

import (
	"errors"
	"math"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pglimit/ratelimit/pglimit"
)

const (
	year = 365 * 24 * time.Hour
)

func TestConstructors(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		limit, want pglimit.Limit
		capacity    int64
	}{
		{pglimit.PerSecond(10), pglimit.Limit{Tokens: 10, Period: time.Second}, 10},
		{pglimit.PerMinute(10), pglimit.Limit{Tokens: 10, Period: time.Minute}, 10},
		{pglimit.PerHour(10), pglimit.Limit{Tokens: 10, Period: time.Hour}, 10},
		{pglimit.Every(10 * time.Second), pglimit.Limit{Tokens: 1, Period: 10 * time.Second}, 1},
		{pglimit.PerSecond(10).WithBurst(25), pglimit.Limit{Tokens: 10, Period: time.Second, Burst: 25}, 25},
		{pglimit.PerSecond(10).WithBurst(1), pglimit.Limit{Tokens: 10, Period: time.Second, Burst: 1}, 1},
		{pglimit.PerSecond(10).WithBurst(25).WithBurst(0), pglimit.Limit{Tokens: 10, Period: time.Second}, 10},
	} {
		if test.limit != test.want {
			t.Errorf("%+v, want %+v", test.limit, test.want)
		}
		if got := test.limit.Capacity(); got != test.capacity {
			t.Errorf("%v holds %d, want %d", test.limit, got, test.capacity)
		}
		if err := test.limit.Validate(); err != nil {
			t.Error(err)
		}
	}
}

func TestWithBurstLeavesTheLimitAlone(t *testing.T) {
	t.Parallel()
	limit := pglimit.PerSecond(10)
	_ = limit.WithBurst(20)
	if limit.Burst != 0 {
		t.Error(limit)
	}
}

func TestValidLimits(t *testing.T) {
	t.Parallel()
	for _, limit := range []pglimit.Limit{
		pglimit.Every(time.Nanosecond),
		pglimit.PerSecond(pglimit.MaxRate),
		pglimit.PerSecond(pglimit.MaxRate).WithBurst(int64(pglimit.MaxWindow)),
		pglimit.Every(year),
		pglimit.Every(pglimit.MaxWindow),
		pglimit.Every(year).WithBurst(200),
		pglimit.PerSecond(999_983), // a prime: a token takes 1,000.02 ns, and 1,001 are 0.1 % more
		pglimit.PerSecond(500_000_000),
		{Tokens: 1 << 61, Period: 1 << 62, Burst: 1},
	} {
		if err := limit.Validate(); err != nil {
			t.Errorf("%v: %v", limit, err)
		}
	}
}

func TestInvalidLimits(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		limit      pglimit.Limit
		field, why string
	}{
		{pglimit.Limit{}, "Tokens", "is 0: it must be at least 1"},
		{pglimit.PerSecond(-5), "Tokens", "is -5: it must be at least 1"},
		{pglimit.PerSecond(math.MinInt64), "Tokens", "is -9223372036854775808: it must be at least 1"},
		{pglimit.Every(0), "Period", "is 0s: it must be longer than zero"},
		{pglimit.Every(-time.Minute), "Period", "is -1m0s: it must be longer than zero"},
		{pglimit.PerSecond(pglimit.MaxRate + 1), "Tokens", "is 1000000001 in 1s: the rate must be at most 1000000000 tokens per second"},
		{pglimit.Limit{Tokens: 2, Period: 1}, "Tokens", "is 2 in 1ns: the rate must be at most 1000000000 tokens per second"},
		{pglimit.PerSecond(10).WithBurst(-1), "Burst", "is -1: it must be at least 1, or 0 for as many as Tokens"},
		{pglimit.PerSecond(3_000_000), "Period", "is 1s for 3000000 tokens, which is no whole number of nanoseconds per token: use 999ms or 1.002s"},
		{pglimit.PerSecond(999_999_937), "Period", "is 1s for 999999937 tokens, which is no whole number of nanoseconds per token: use 999.999937ms or 1.999999874s"},
		{pglimit.Every(pglimit.MaxWindow + 1), "Period", "is 1752000h0m0.000000001s for 1 tokens: a token must come back within 200 years"},
		{pglimit.Every(year).WithBurst(201), "Burst", "is 201, which take longer than 200 years to come back at this rate: it must be at most 200"},
		{pglimit.Every(time.Second).WithBurst(math.MaxInt64), "Burst",
			"is 9223372036854775807, which take longer than 200 years to come back at this rate: it must be at most 6307200000"},
	} {
		err := test.limit.Validate()
		var limit *pglimit.LimitError
		if !errors.As(err, &limit) {
			t.Errorf("%v: %v", test.limit, err)
			continue
		}
		if limit.Limit != test.limit || limit.Field != test.field || limit.Why != test.why {
			t.Errorf("%+v:\n got %s %s\nwant %s %s", test.limit, limit.Field, limit.Why, test.field, test.why)
		}
		if want := "pglimit: Limit." + test.field + " " + test.why; err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func TestTokenAndWindow(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		limit         pglimit.Limit
		token, window time.Duration
	}{
		{pglimit.PerSecond(1), time.Second, time.Second},
		{pglimit.PerSecond(3), 333_333_334, 1_000_000_002},
		{pglimit.PerMinute(60).WithBurst(10), time.Second, 10 * time.Second},
		{pglimit.PerSecond(pglimit.MaxRate), 1, time.Second},
		{pglimit.Every(year).WithBurst(200), year, 200 * year},
		{pglimit.Every(7), 7, 7},
	} {
		if token, window := test.limit.Token(), test.limit.Window(); token != test.token || window != test.window {
			t.Errorf("%v: %v, %v; want %v, %v", test.limit, token, window, test.token, test.window)
		}
	}
}

// anyLimit is valid or not: plausible numbers, the largest, and those between.
var anyLimit = rapid.Custom(func(t *rapid.T) pglimit.Limit {
	number := rapid.OneOf(
		rapid.Int64Range(-1, 1000),
		rapid.Int64Range(1, pglimit.MaxRate),
		rapid.Int64Range(1, math.MaxInt64),
		rapid.SampledFrom([]int64{1 << 61, 1<<62 - 1, 1 << 62, 1<<62 + 1, math.MaxInt64, math.MinInt64}),
	)
	period := rapid.OneOf(number, rapid.SampledFrom([]int64{int64(time.Second), int64(time.Minute), int64(time.Hour), int64(year)}))
	return pglimit.Limit{
		Tokens: number.Draw(t, "tokens"),
		Period: time.Duration(period.Draw(t, "period")),
		Burst:  number.Draw(t, "burst"),
	}
})

var validLimit = anyLimit.Filter(func(l pglimit.Limit) bool { return l.Validate() == nil })

// The rate is kept on the slow side, by less than a nanosecond per token and a thousandth, and
// no sum of a bucket overflows.
func TestEveryValidLimitIsKept(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limit := validLimit.Draw(t, "limit")
		all := new(big.Int).Mul(big.NewInt(limit.Tokens), big.NewInt(int64(limit.Token())))
		missed := new(big.Int).Sub(all, big.NewInt(int64(limit.Period)))
		if missed.Sign() < 0 || missed.Cmp(big.NewInt(limit.Tokens)) >= 0 || missed.Cmp(big.NewInt(max(1, int64(limit.Period)/1000))) > 0 {
			t.Fatalf("%v: %v per token misses the period by %v ns", limit, limit.Token(), missed)
		}
		window := new(big.Int).Mul(big.NewInt(limit.Capacity()), big.NewInt(int64(limit.Token())))
		if window.Cmp(big.NewInt(int64(pglimit.MaxWindow))) > 0 || window.Int64() != int64(limit.Window()) {
			t.Fatalf("%v: a window of %v ns", limit, window)
		}
	})
}
