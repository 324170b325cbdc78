package rate_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Of grants that take a bucket down, also below zero ahead of their time, one crosses each share; and another one after
// each time that tokens have come back.
func TestOneGrantCrossesAShare(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limit := rate.PerHour(7).WithBurst(rapid.Int64Range(1, 1000).Draw(t, "burst"))
		percent := rapid.Int64Range(1, 100).Draw(t, "percent")
		need := (limit.Burst*percent + 99) / 100 // tokens
		level, crossed, want := limit.Burst, 0, 0
		for level > -limit.Burst {
			if rapid.IntRange(0, 9).Draw(t, "comes back") == 0 {
				level = min(limit.Burst, level+rapid.Int64Range(0, limit.Burst).Draw(t, "tokens"))
			}
			d := rate.Decision{Allowed: true, Granted: rapid.Int64Range(1, limit.Burst).Draw(t, "granted"), Limit: limit}
			if limit.Burst-level < need && limit.Burst-level+d.Granted >= need {
				want++
			}
			level -= d.Granted
			d.Remaining = max(0, level)
			if level < 0 { // a part of a token may have come back
				d.Delay = time.Duration(-level)*limit.Token() - time.Duration(rapid.Int64Range(0, int64(limit.Token())-1).Draw(t, "refilled"))
			}
			if d.Crosses(float64(percent) / 100) {
				crossed++
			}
		}
		if crossed != want {
			t.Fatalf("%d crossed %d %% of %d, want %d", crossed, percent, limit.Burst, want)
		}
	})
}

// The first grant out of a lease crosses what the whole lease does, and the others nothing. Nor does what was not
// charged.
func TestWhatCrossesNothing(t *testing.T) {
	t.Parallel()
	limit := rate.PerHour(10)
	lease := &rate.Lease{Tokens: 4, Left: rate.Decision{Remaining: 1}}
	for name, test := range map[string]struct {
		d    rate.Decision
		want bool
	}{
		"a grant":                   {rate.Decision{Granted: 1, Remaining: 2}, true},
		"a denial":                  {rate.Decision{Remaining: 2}, false},
		"the first of a lease":      {rate.Decision{Granted: 1, Remaining: 4, Source: rate.FromLease, Lease: lease}, true},
		"another one of it":         {rate.Decision{Granted: 1, Remaining: 2, Source: rate.FromLease}, false},
		"by a rule":                 {rate.Decision{Granted: 1, Remaining: 2, Source: rate.FromRule}, false},
		"a fallback without limits": {rate.Decision{Granted: 1, Delay: time.Second, Source: rate.FromFallback}, false},
	} {
		if test.d.Source != rate.FromFallback {
			test.d.Limit = limit
		}
		if got := test.d.Crosses(0.8); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// Bytes per month are many tokens.
func TestTheLastOfManyTokensCrosses(t *testing.T) {
	t.Parallel()
	for _, burst := range []int64{100, 1e6, 1e13, 1e15} {
		limit := rate.PerMonth(burst)
		for share, used := range map[float64]int64{0.07: burst / 100 * 7, 0.8: burst / 10 * 8, 1: burst} {
			for k, want := range []bool{false, true, false} {
				d := rate.Decision{Allowed: true, Granted: 1, Remaining: burst - used + 1 - int64(k), Limit: limit}
				if got := d.Crosses(share); got != want {
					t.Errorf("%v of %d, with %d left: %v", share, burst, d.Remaining, got)
				}
			}
		}
	}
}
