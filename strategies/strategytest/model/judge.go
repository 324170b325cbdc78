package model

import (
	"cmp"
	"slices"
)

// Judge checks the first promise and knows nothing else: in every span of real time T,
// tokens granted ≤ the loosest burst + the loosest rate × T. A step forward of the clock
// refills as much as the time that it skips. Tokens that were refunded do not count; those
// of a lease count when they are spent.
type Judge struct {
	token, burst int64
	events       []event
}

// event at a time by a clock that does not step: n tokens were granted, or the database's
// clock skipped a time.
type event struct{ at, n, skipped int64 }

// NewJudge of a bucket under limits side by side: then the looser ones bind.
func NewJudge(limits ...Limit) *Judge {
	j := &Judge{token: Forever}
	for _, l := range limits {
		j.token, j.burst = min(j.token, l.Token), max(j.burst, l.Burst)
	}
	return j
}

// Grant of n tokens; the name of it, for [Judge.Refund].
func (j *Judge) Grant(at, n int64) (grant int) {
	j.events = append(j.events, event{at: at, n: n})
	return len(j.events) - 1
}

// Refund of a grant, in whole.
func (j *Judge) Refund(grant int) { j.events[grant].n = 0 }

// Step of the database's clock; one back does not matter.
func (j *Judge) Step(at, forward int64) {
	j.events = append(j.events, event{at: at, skipped: max(0, forward)})
}

// Over is how many tokens too many were granted in the worst span, in nanoseconds of the
// loosest rate; 0 if the promise was kept.
//
// The worst span that ends with a grant begins where a bucket that never says no was last
// full; so it is by how much such a bucket ever owes more than it holds.
func (j *Judge) Over() (worst int64) {
	events := slices.Clone(j.events) // grants keep their names
	slices.SortStableFunc(events, func(a, b event) int {
		return cmp.Or(cmp.Compare(a.at, b.at), -cmp.Compare(a.skipped, b.skipped))
	})
	var owed, last int64
	for i, e := range events {
		if i > 0 {
			owed = max(0, owed-(e.at-last)-e.skipped)
		}
		last = e.at
		owed = plus(owed, times(e.n, j.token))
		worst = max(worst, owed-times(j.burst, j.token))
	}
	return worst
}

// Tokens is a time in tokens of the loosest rate, rounded up.
func (j *Judge) Tokens(ns int64) int64 { return (ns + j.token - 1) / j.token }
