package rate_test

import (
	"errors"
	"math"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

const (
	year = 365 * 24 * time.Hour
)

func TestConstructors(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		limit, want rate.Limit
	}{
		{rate.PerSecond(10), rate.Limit{Tokens: 10, Period: time.Second, Burst: 10}},
		{rate.PerMinute(10), rate.Limit{Tokens: 10, Period: time.Minute, Burst: 10}},
		{rate.PerHour(10), rate.Limit{Tokens: 10, Period: time.Hour, Burst: 10}},
		{rate.Every(10 * time.Second), rate.Limit{Tokens: 1, Period: 10 * time.Second, Burst: 1}},
		{rate.PerSecond(10).WithBurst(25), rate.Limit{Tokens: 10, Period: time.Second, Burst: 25}},
		{rate.PerSecond(10).WithBurst(1), rate.Limit{Tokens: 10, Period: time.Second, Burst: 1}},
	} {
		if test.limit != test.want {
			t.Errorf("%+v, want %+v", test.limit, test.want)
		}
		if err := test.limit.Validate(); err != nil {
			t.Error(err)
		}
	}
}

func TestWithBurstLeavesTheLimitAlone(t *testing.T) {
	t.Parallel()
	limit := rate.PerSecond(10)
	_ = limit.WithBurst(20)
	if limit.Burst != 10 {
		t.Error(limit)
	}
}

func TestValidLimits(t *testing.T) {
	t.Parallel()
	for _, limit := range []rate.Limit{
		rate.Every(time.Nanosecond),
		rate.PerSecond(rate.MaxRate),
		rate.PerSecond(rate.MaxRate).WithBurst(int64(rate.MaxWindow)),
		rate.Every(year),
		rate.Every(rate.MaxWindow),
		rate.Every(year).WithBurst(200),
		rate.PerSecond(999_983), // a prime: a token takes 1,000.02 ns, and 1,001 are 0.1 % more
		rate.PerSecond(500_000_000),
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
		limit      rate.Limit
		field, why string
	}{
		{rate.Limit{}, "Tokens", "is 0: it must be at least 1"},
		{rate.PerSecond(-5), "Tokens", "is -5: it must be at least 1"},
		{rate.PerSecond(math.MinInt64), "Tokens", "is -9223372036854775808: it must be at least 1"},
		{rate.Every(0), "Period", "is 0s: it must be longer than zero"},
		{rate.Every(-time.Minute), "Period", "is -1m0s: it must be longer than zero"},
		{rate.PerSecond(rate.MaxRate + 1), "Tokens", "is 1000000001 in 1s: the rate must be at most 1000000000 tokens per second"},
		{rate.Limit{Tokens: 2, Period: 1}, "Tokens", "is 2 in 1ns: the rate must be at most 1000000000 tokens per second"},
		{rate.PerSecond(10).WithBurst(-1), "Burst", "is -1: it must be at least 1 (Tokens, 10, is usual)"},
		{rate.Limit{Tokens: 10, Period: time.Second}, "Burst", "is 0: it must be at least 1 (Tokens, 10, is usual)"},
		{rate.PerSecond(3_000_000), "Period", "is 1s for 3000000 tokens, which is no whole number of nanoseconds per token: use 999ms or 1.002s"},
		{rate.PerSecond(999_999_937), "Period", "is 1s for 999999937 tokens, which is no whole number of nanoseconds per token: use 999.999937ms or 1.999999874s"},
		{rate.Every(rate.MaxWindow + 1), "Period", "is 1752000h0m0.000000001s for 1 tokens: a token must come back within 200 years"},
		{rate.Every(year).WithBurst(201), "Burst", "is 201, which take longer than 200 years to come back at this rate: it must be at most 200"},
		{rate.Every(time.Second).WithBurst(math.MaxInt64), "Burst",
			"is 9223372036854775807, which take longer than 200 years to come back at this rate: it must be at most 6307200000"},
	} {
		err := test.limit.Validate()
		var limit *rate.LimitError
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
		limit         rate.Limit
		token, window time.Duration
	}{
		{rate.PerSecond(1), time.Second, time.Second},
		{rate.PerSecond(3), 333_333_334, 1_000_000_002},
		{rate.PerMinute(60).WithBurst(10), time.Second, 10 * time.Second},
		{rate.PerSecond(rate.MaxRate), 1, time.Second},
		{rate.Every(year).WithBurst(200), year, 200 * year},
		{rate.Every(7), 7, 7},
	} {
		if token, window := test.limit.Token(), test.limit.Window(); token != test.token || window != test.window {
			t.Errorf("%v: %v, %v; want %v, %v", test.limit, token, window, test.token, test.window)
		}
	}
}

// anyLimit is valid or not: plausible numbers, the largest, and those between.
var anyLimit = rapid.Custom(func(t *rapid.T) rate.Limit {
	number := rapid.OneOf(
		rapid.Int64Range(-1, 1000),
		rapid.Int64Range(1, rate.MaxRate),
		rapid.Int64Range(1, math.MaxInt64),
		rapid.SampledFrom([]int64{1 << 61, 1<<62 - 1, 1 << 62, 1<<62 + 1, math.MaxInt64, math.MinInt64}),
	)
	period := rapid.OneOf(number, rapid.SampledFrom([]int64{int64(time.Second), int64(time.Minute), int64(time.Hour), int64(year)}))
	return rate.Limit{
		Tokens: number.Draw(t, "tokens"),
		Period: time.Duration(period.Draw(t, "period")),
		Burst:  number.Draw(t, "burst"),
	}
})

var validLimit = anyLimit.Filter(func(l rate.Limit) bool { return l.Validate() == nil })

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
		window := new(big.Int).Mul(big.NewInt(limit.Burst), big.NewInt(int64(limit.Token())))
		if window.Cmp(big.NewInt(int64(rate.MaxWindow))) > 0 || window.Int64() != int64(limit.Window()) {
			t.Fatalf("%v: a window of %v ns", limit, window)
		}
	})
}
