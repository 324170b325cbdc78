package model

import (
	"cmp"
	"slices"
)

// Judge checks the first promise and knows nothing else: in every span of real time T,
// tokens granted ≤ the loosest burst + the loosest rate × T. If the clock steps forward, the
// time that it skips counts as passed. Refunded tokens do not count; leased tokens count when
// they are spent.
type Judge struct {
	token, burst int64
	events       []event
}

// event is a grant of n tokens, or a time that the database's clock skipped. at is by a clock
// that does not step.
type event struct{ at, n, skipped int64 }

// NewJudge returns a judge of a bucket under limits side by side: the loosest burst and rate
// bind.
func NewJudge(limits ...Limit) *Judge {
	j := &Judge{token: Forever}
	for _, l := range limits {
		j.token, j.burst = min(j.token, l.Token), max(j.burst, l.Burst)
	}
	return j
}

// Grant records a grant of n tokens. It returns a number for [Judge.Refund].
func (j *Judge) Grant(at, n int64) (grant int) {
	j.events = append(j.events, event{at: at, n: n})
	return len(j.events) - 1
}

// Refund records that all tokens of a grant were given back.
func (j *Judge) Refund(grant int) { j.events[grant].n = 0 }

// Step records a step of the database's clock. A step back does not matter.
func (j *Judge) Step(at, forward int64) {
	j.events = append(j.events, event{at: at, skipped: max(0, forward)})
}

// Over is how much too much was granted in the worst span, in nanoseconds of the loosest
// rate; 0 if the promise was kept.
//
// The worst span that ends with a grant begins where a bucket that never denies was last full.
// So Over is the most by which such a bucket ever owes more than it holds.
func (j *Judge) Over() (worst int64) {
	events := slices.Clone(j.events) // the numbers of grants stay valid
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

// Tokens converts a time to tokens of the loosest rate, rounded up.
func (j *Judge) Tokens(ns int64) int64 { return (ns + j.token - 1) / j.token }
