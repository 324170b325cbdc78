// Package warmup is the arithmetic of strategies.WarmUp, as the SQL has it: that of SmoothWarmingUp in the
// RateLimiter of Guava,
// https://github.com/google/guava/blob/master/guava/src/com/google/common/util/concurrent/SmoothRateLimiter.java.
package warmup

import (
	"math"
	"time"

	"github.com/pglimit/ratelimit/internal/bucket"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Rule is that of a key that warms up: after a grant, of however many tokens, there are none until it is paid for,
// and a whole burst then.
type Rule struct {
	Period time.Duration // from warm to cold
	Factor float64       // how many times as much a token costs when it is cold
}

// Terms of the rule under a limit. A key has stored permits, which come back evenly within the Period while it is free.
// Those above the Threshold cost more than a token: each Slope nanoseconds more than the one below it.
type Terms struct{ Threshold, Most, Slope float64 }

// Terms under a limit.
func (rule Rule) Terms(limit rate.Limit) Terms {
	stable, period := float64(limit.Token()), float64(rule.Period)
	cold := float64(stable * rule.Factor) // rounded here, on every machine
	threshold := period / (2 * stable)
	above := 2 * period / (stable + cold)
	return Terms{Threshold: threshold, Most: threshold + above, Slope: (cold - stable) / above}
}

// State is what a key pays for, and how warm it is. The zero State is that of a key that is free and cold. Times are
// nanoseconds.
type State struct {
	FreeNS   int64 // when the last grant is paid for
	FullNS   int64 // when the key is cold again
	PeriodNS int64 // from warm to cold
}

// Take returns the state after a grant of n tokens that is due at dueNS, which is not before FreeNS.
func (s State) Take(rule Rule, limit rate.Limit, dueNS, n int64) State {
	terms, missing := rule.Terms(limit), 0.0
	if s.PeriodNS > 0 {
		missing = min(1, float64(max(0, s.FullNS-dueNS))/float64(s.PeriodNS))
	}
	above := max(0, float64(terms.Most*(1-missing))-terms.Threshold)
	dear := min(float64(n), above)
	extra := int64(math.Ceil(dear * (above + (above - dear)) * terms.Slope / 2))
	s.PeriodNS = int64(rule.Period)
	s.FreeNS = dueNS + min(n*int64(limit.Token())+extra, math.MaxInt64-dueNS)
	s.FullNS = s.FreeNS + min(int64(math.Ceil(float64(s.PeriodNS)*min(1, missing+float64(n)/terms.Most))), math.MaxInt64-s.FreeNS)
	return s
}

// Row of a key, as far as a decision needs it. The zero Row stands for a missing one. Times are nanoseconds since 1970
// by the database's clock.
type Row struct {
	FreeNS int64 // when the last grant is paid for
	DueNS  int64 // since when it has been paid for
	AtNS   int64 // of the last write
}

// Fields returns pointers to the columns of a row, in the order in which statements return them.
func (w *Row) Fields() []any { return []any{&w.FreeNS, &w.DueNS, &w.AtNS} }

// Ahead says that the clock has stepped back since the row was written.
func (w *Row) Ahead(nowNS int64) bool { return w.AtNS > nowNS+bucket.StepNS }

// Decision is the decision of a request that was granted so many tokens, by the row after that.
func (w *Row) Decision(r *rate.Request, nowNS, granted int64) rate.Decision {
	seenNS := max(nowNS, w.AtNS)
	if !w.Ahead(nowNS) {
		nowNS = seenNS
	}
	d := rate.Decision{Granted: granted, HasRow: w.AtNS > 0, At: time.Unix(0, nowNS).UTC()}
	if d.ResetAfter = bucket.RoundUp(max(0, w.FreeNS-seenNS)); d.ResetAfter == 0 {
		d.Remaining = r.Limit.Burst
	}
	d.RetryAfter = d.ResetAfter
	d.Allowed = granted > 0 || r.Tokens == 0 && d.Remaining > 0
	if granted > 0 {
		atOnce := r.Limit.Burst
		if w.DueNS > w.AtNS {
			atOnce = r.Unit
		}
		d.Delay = time.Duration(w.DueNS - w.AtNS + max(0, granted-atOnce)*int64(r.Limit.Token()))
	}
	return d
}

var _ rate.Apart = Rule{}

// Apart says that each request pays for itself before the next one is granted.
func (Rule) Apart() {}

// Later returns the decision as it reads after that time. More tokens are of no use before the last grant is paid for.
func (Rule) Later(d rate.Decision, _, _ int64, passed time.Duration, _ int64) rate.Decision {
	d.ResetAfter = max(0, d.ResetAfter-passed)
	if d.ResetAfter == 0 {
		d.Remaining = d.Limit.Burst
	}
	d.RetryAfter = d.ResetAfter
	d.Delay = max(0, d.Delay-passed)
	d.At = d.At.Add(passed)
	return d
}

// Denies says whether n tokens are denied until that time has passed: as long as the last grant is not paid for, all
// are.
func (Rule) Denies(d rate.Decision, _, _ int64, passed time.Duration) bool {
	return passed < d.RetryAfter
}
