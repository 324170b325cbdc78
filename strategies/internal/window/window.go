// Package window is the arithmetic of sliding windows, as the SQL has it: never more than Limit.Burst tokens in any
// Limit.Window.
package window

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/pglimit/ratelimit/internal/bucket"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Row of a key: how many tokens were used when, in any order. The zero Row stands for a missing one. Times are
// nanoseconds since 1970 by the database's clock.
type Row struct {
	Used     []int64 // below 0: they were denied
	LastNS   []int64 // when the last of them were granted
	WindowNS []int64 // under the limit by which they were granted
	AtNS     int64   // of the last write
}

// Fields returns pointers to the columns of a row, in the order in which statements return them.
func (w *Row) Fields() []any { return []any{&w.Used, &w.LastNS, &w.WindowNS, &w.AtNS} }

// Ahead says that the clock has stepped back since the row was written.
func (w *Row) Ahead(nowNS int64) bool { return w.AtNS > nowNS+bucket.StepNS }

// use is so many tokens that come back after so many nanoseconds.
type use struct{ afterNS, tokens int64 }

// uses returns what is used at nowNS under the limit, the last to come back first, and for how long nothing is
// granted because of the least distance. Tokens come back by the window under which they were granted, or by that of
// the limit if it is shorter.
func (rule Rule) uses(w *Row, nowNS int64, limit rate.Limit) (uses []use, closedNS int64) {
	if w.Ahead(nowNS) { // all is as old as when it was written
		nowNS = w.AtNS
	}
	for i, tokens := range w.Used {
		if tokens < 0 && rule.CountDenied {
			tokens = -tokens
		}
		if tokens <= 0 {
			continue
		}
		age := nowNS - w.LastNS[i]
		closedNS = max(closedNS, int64(rule.MinInterval)-age)
		if afterNS := min(w.WindowNS[i], int64(limit.Window())) - age; afterNS > 0 {
			uses = append(uses, use{afterNS, tokens})
		}
	}
	slices.SortFunc(uses, func(a, b use) int { return cmp.Compare(b.afterNS, a.afterNS) })
	return uses, closedNS
}

// Decision is the decision of a request that was granted so many tokens, by the row after that.
func (rule Rule) Decision(w *Row, r *rate.Request, nowNS, granted int64) rate.Decision {
	if !w.Ahead(nowNS) {
		nowNS = max(nowNS, w.AtNS)
	}
	d := rate.Decision{Granted: granted, HasRow: w.AtNS > 0, At: time.Unix(0, nowNS).UTC()}
	unit, used := max(1, r.Unit), int64(0)
	uses, closedNS := rule.uses(w, nowNS, r.Limit)
	for _, u := range uses {
		d.ResetAfter = max(d.ResetAfter, bucket.RoundUp(u.afterNS))
		if used += min(u.tokens, math.MaxInt64-used); used > r.Limit.Burst-unit && d.RetryAfter == 0 {
			d.RetryAfter = bucket.RoundUp(u.afterNS)
		}
	}
	d.RetryAfter, d.ResetAfter = max(d.RetryAfter, bucket.RoundUp(closedNS)), max(d.ResetAfter, bucket.RoundUp(closedNS))
	d.Remaining = max(0, r.Limit.Burst-used)
	d.Allowed = granted > 0 || r.Tokens == 0 && d.RetryAfter == 0
	return d
}

// Rule is that of a window: tokens come back a window after they were granted, and a decision says of two moments
// how many are there: RetryAfter and ResetAfter.
type Rule struct {
	// Cells of a window: what was granted in one comes back together. Zero: each grant by itself.
	Cells int

	// MinInterval between two grants, and CountDenied: see strategies.SlidingLog.
	MinInterval time.Duration
	CountDenied bool
}

// Cell is how many nanoseconds a cell of such a window lasts. Cells begin at the multiples of that since 1970.
func (rule Rule) Cell(window time.Duration) int64 {
	if rule.Cells == 0 {
		return 1
	}
	return int64((window-1)/time.Duration(rule.Cells) + 1)
}

var _ rate.Rule = Rule{}

// Later returns the decision as it reads for n tokens, after that time, with more tokens. What comes back between the
// two moments that the decision knows counts as if it came at the second.
func (rule Rule) Later(d rate.Decision, unit, n int64, passed time.Duration, more int64) rate.Decision {
	unit, n = max(1, unit), max(1, n)
	left, retry := d.Remaining, max(0, d.ResetAfter-passed)
	closed := rule.MinInterval > 0 && passed < d.RetryAfter
	if d.RetryAfter > 0 && (n <= unit || closed && n <= left) {
		retry = max(0, d.RetryAfter-passed)
	}
	switch {
	case passed >= d.ResetAfter:
		left = d.Limit.Burst
	case d.RetryAfter > 0 && passed >= d.RetryAfter:
		left = max(left, unit)
	}
	d.Remaining = min(d.Limit.Burst, left+min(more, d.Limit.Burst))
	d.ResetAfter = max(0, d.ResetAfter-passed)
	if d.Remaining == d.Limit.Burst && !closed {
		d.ResetAfter = 0
	}
	if d.RetryAfter = retry; d.Remaining >= n && !closed {
		d.RetryAfter = 0
	}
	if more > 0 { // two requests cannot share one grant: the other would be due that much later
		d.Delay = rule.MinInterval
	}
	d.At = d.At.Add(passed)
	return d
}

// Denies says whether n tokens are denied until that time has passed. What fewer tokens than those that were asked for
// would be told, a decision does not say; nor more, unless they come back at the same moment. If denials count, it says
// nothing: Postgres has to count the next one.
func (rule Rule) Denies(d rate.Decision, unit, n int64, passed time.Duration) bool {
	unit, n = max(1, unit), max(1, n)
	return !rule.CountDenied && passed < d.RetryAfter && (n == unit || n > unit && d.RetryAfter == d.ResetAfter)
}
