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
	year  = 365 * 24 * time.Hour
	parts = 1 << 62 // that a bucket may hold
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
		pglimit.PerSecond(pglimit.MaxRate).WithBurst(parts),
		pglimit.Every(year),
		pglimit.Every(100 * year),
		pglimit.Every(math.MaxInt64 / 2), // 146 years
		{Tokens: 999_999_937, Period: time.Second},
		{Tokens: parts / 1000, Period: parts / 1000},
		{Tokens: 1, Period: 1, Burst: parts},
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
		{pglimit.Limit{Tokens: parts/1000 + 1, Period: math.MaxInt64, Burst: 1}, "Tokens",
			"is 4611686018427388: it must be at most 4611686018427387 (say the same rate with a shorter Period)"},
		{pglimit.PerSecond(10).WithBurst(-1), "Burst", "is -1: it must be at least 1, or 0 for as many as Tokens"},
		{pglimit.PerSecond(pglimit.MaxRate).WithBurst(parts + 1), "Burst",
			"is 4611686018427387905, too many to be counted exactly at this rate (a token is 1 parts, a bucket holds at most 4611686018427387904): " +
				"use a smaller Burst or rounder Tokens and Period"},
		{pglimit.Every(time.Second).WithBurst(math.MaxInt64), "Burst",
			"is 9223372036854775807, too many to be counted exactly at this rate (a token is 1000000 parts, a bucket holds at most 4611686018427387904): " +
				"use a smaller Burst or rounder Tokens and Period"},
		{pglimit.Every(time.Second).WithBurst(1 << 58), "Burst", // 2^64 × 15,625 parts
			"is 288230376151711744, too many to be counted exactly at this rate (a token is 1000000 parts, a bucket holds at most 4611686018427387904): " +
				"use a smaller Burst or rounder Tokens and Period"},
		{pglimit.Every(math.MaxInt64), "Burst",
			"is 1, too many to be counted exactly at this rate (a token is 9223372036854775807 parts, a bucket holds at most 4611686018427387904): " +
				"use a smaller Burst or rounder Tokens and Period"},
		// A microsecond's refill of this one is more than an int64 holds.
		{pglimit.Limit{Tokens: 18_446_744_073_709_553, Period: 4_000_000_000_000_000_001, Burst: 1}, "Tokens",
			"is 18446744073709553: it must be at most 4611686018427387 (say the same rate with a shorter Period)"},
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

func TestParts(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		limit                    pglimit.Limit
		perToken, perMicrosecond int64
	}{
		{pglimit.PerSecond(1), 1_000_000, 1},
		{pglimit.PerSecond(3), 1_000_000, 3},
		{pglimit.PerMinute(60), 1_000_000, 1},
		{pglimit.PerSecond(10), 100_000, 1},
		{pglimit.PerSecond(1_000_000), 1, 1},
		{pglimit.PerSecond(pglimit.MaxRate), 1, 1000},
		{pglimit.PerSecond(999_999_937), 1_000_000, 999_999_937},
		{pglimit.Every(year), 31_536_000_000_000, 1},
		{pglimit.Every(time.Nanosecond), 1, 1000},
		{pglimit.Every(7), 7, 1000},
		{pglimit.Every(1500), 3, 2},
	} {
		if perToken, perMicrosecond := test.limit.Parts(); perToken != test.perToken || perMicrosecond != test.perMicrosecond {
			t.Errorf("%v: %d, %d; want %d, %d", test.limit, perToken, perMicrosecond, test.perToken, test.perMicrosecond)
		}
	}
}

// anyLimit is valid or not: plausible numbers, the largest, and those between.
var anyLimit = rapid.Custom(func(t *rapid.T) pglimit.Limit {
	number := rapid.OneOf(
		rapid.Int64Range(-1, 1000),
		rapid.Int64Range(1, pglimit.MaxRate),
		rapid.Int64Range(1, math.MaxInt64),
		rapid.SampledFrom([]int64{parts / 1000, parts/1000 + 1, parts - 1, parts, parts + 1, math.MaxInt64, math.MinInt64}),
	)
	period := rapid.OneOf(number, rapid.SampledFrom([]int64{int64(time.Second), int64(time.Minute), int64(time.Hour), int64(year)}))
	return pglimit.Limit{
		Tokens: number.Draw(t, "tokens"),
		Period: time.Duration(period.Draw(t, "period")),
		Burst:  number.Draw(t, "burst"),
	}
})

var validLimit = anyLimit.Filter(func(l pglimit.Limit) bool { return l.Validate() == nil })

// Nothing is rounded, and a bucket, a grant and a refill fit an int64.
func TestPartsAreExactForEveryValidLimit(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limit := validLimit.Draw(t, "limit")
		perToken, perMicrosecond := limit.Parts()
		if perToken < 1 || perMicrosecond < 1 || perMicrosecond > parts || perToken > parts/limit.Capacity() {
			t.Fatalf("%v: %d and %d parts are out of bounds", limit, perToken, perMicrosecond)
		}
		want := new(big.Rat).SetFrac( // tokens per microsecond
			new(big.Int).Mul(big.NewInt(limit.Tokens), big.NewInt(int64(time.Microsecond))),
			big.NewInt(int64(limit.Period)))
		// A Rat is in lowest terms, so this is also that there is no common divisor.
		if want.Num().Int64() != perMicrosecond || want.Denom().Int64() != perToken || !want.Num().IsInt64() || !want.Denom().IsInt64() {
			t.Fatalf("%v: %d/%d parts, want %v", limit, perMicrosecond, perToken, want)
		}
	})
}

func TestEqualRatesHaveEqualParts(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limit := validLimit.Draw(t, "limit")
		times := rapid.Int64Range(1, min(math.MaxInt64/limit.Tokens, math.MaxInt64/int64(limit.Period))).Draw(t, "times")
		same := pglimit.Limit{Tokens: limit.Tokens * times, Period: limit.Period * time.Duration(times), Burst: limit.Capacity()}
		if same.Validate() != nil {
			t.Skip("too many tokens")
		}
		a, b := limit.Parts()
		if c, d := same.Parts(); a != c || b != d {
			t.Fatalf("%v: %d, %d; %v: %d, %d", limit, a, b, same, c, d)
		}
	})
}
