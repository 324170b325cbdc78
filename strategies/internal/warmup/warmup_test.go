package warmup

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// guava is SmoothWarmingUp in its own terms: permits that are stored, in seconds.
type guava struct {
	warmup, factor                           float64
	stored, most, threshold, slope, interval float64
	nextFree                                 float64
}

func (g *guava) setRate(interval float64) {
	oldMost, coldInterval := g.most, interval*g.factor
	g.interval = interval
	g.threshold = 0.5 * g.warmup / interval
	g.most = g.threshold + 2*g.warmup/(interval+coldInterval)
	g.slope = (coldInterval - interval) / (g.most - g.threshold)
	if oldMost == 0 {
		g.stored = g.most
	} else {
		g.stored = g.stored * g.most / oldMost
	}
}

func (g *guava) resync(now float64) {
	if now > g.nextFree {
		g.stored = min(g.most, g.stored+(now-g.nextFree)/(g.warmup/g.most))
		g.nextFree = now
	}
}

func (g *guava) acquire(now, permits float64) {
	g.resync(now)
	spend := min(permits, g.stored)
	cost := 0.0
	if above := g.stored - g.threshold; above > 0 {
		take := min(above, spend)
		length := g.interval + above*g.slope + g.interval + (above-take)*g.slope
		cost = take * length / 2
		spend -= take
		permits -= take
		g.stored -= take
	}
	g.stored -= spend
	g.nextFree += cost + permits*g.interval
}

// Whatever is asked when, and however the rate changes, a key is free when it is with Guava.
func TestAKeyIsFreeWhenItIsWithGuava(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rule := Rule{Period: time.Duration(rapid.Int64Range(1, 60_000).Draw(t, "period")) * time.Millisecond, Factor: rapid.Float64Range(1, 20).Draw(t, "factor")}
		g := guava{warmup: rule.Period.Seconds(), factor: rule.Factor}
		var key State
		now, limit := int64(0), rate.Limit{}
		for range 30 {
			if limit.Burst == 0 || rapid.IntRange(0, 4).Draw(t, "changes") == 0 {
				limit = rate.Every(time.Duration(rapid.Int64Range(1, 5000).Draw(t, "token")) * time.Millisecond).WithBurst(50)
				g.setRate(limit.Token().Seconds())
			}
			now += rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(0, 2*int64(rule.Period))).Draw(t, "passes")
			n := rapid.Int64Range(1, 50).Draw(t, "tokens")
			g.acquire(time.Duration(now).Seconds(), float64(n))
			key = key.Take(rule, limit, max(now, key.FreeNS), n)
			if got, want := time.Duration(key.FreeNS).Seconds(), g.nextFree; math.Abs(got-want) > 1e-6 {
				t.Fatalf("free at %v, want %v", got, want)
			}
		}
	})
}

// To empty a cold key takes a Period and a half, in any portions; no token costs less than it does under the limit.
func TestEmptyingAColdKeyInAnyPortions(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rule := Rule{Period: 10 * time.Second, Factor: rapid.Float64Range(1, 100).Draw(t, "factor")}
		limit := rate.PerSecond(rapid.Int64Range(100, 1000).Draw(t, "rate"))
		most := rule.Terms(limit).Most
		var key State
		var taken int64
		for left := int64(most); left > 0; {
			n := rapid.Int64Range(1, left).Draw(t, "tokens")
			before := key
			key = key.Take(rule, limit, key.FreeNS, n)
			if least := n * int64(limit.Token()); key.FreeNS-before.FreeNS < least {
				t.Fatalf("%d tokens cost %d, less than %d", n, key.FreeNS-before.FreeNS, least)
			}
			taken, left = taken+n, left-n
		}
		// The last of them, a part of a permit, costs a token at most.
		if off := time.Duration(key.FreeNS) - rule.Period*3/2; off.Abs() > limit.Token()+time.Duration(taken) {
			t.Fatalf("it takes %v", time.Duration(key.FreeNS))
		}
	})
}

// Numbers at the ends of what is allowed do not overflow, and nothing costs less than the limit says.
func TestExtremeLimitsDoNotOverflow(t *testing.T) {
	t.Parallel()
	for _, limit := range []rate.Limit{
		rate.Every(1), rate.PerSecond(rate.MaxRate).WithBurst(int64(rate.MaxWindow)), rate.Every(rate.MaxWindow), {Tokens: 1 << 61, Period: 1 << 62, Burst: 1},
	} {
		for _, rule := range []Rule{{1, 1}, {1, 1000}, {24 * time.Hour, 1}, {24 * time.Hour, 1000}, {10 * time.Second, 3}} {
			for _, now := range []int64{1, 1_790_000_000_000_000_000, math.MaxInt64 - 1} {
				key := State{}
				for _, n := range []int64{1, limit.Burst, 1} {
					due := max(now, key.FreeNS)
					key = key.Take(rule, limit, due, n)
					if least := min(n*int64(limit.Token()), math.MaxInt64-due); key.FreeNS-due < least || key.FullNS < key.FreeNS {
						t.Errorf("%v, %+v: %d tokens at %d: %+v", limit, rule, n, due, key)
					}
				}
			}
		}
	}
}
