package model

import "time"

// Report is what a decision tells the caller, see pglimit.Decision.
type Report struct {
	Remaining int64
	At        int64

	// From At; the longest Duration where it is longer.
	RetryAfter, ResetAfter time.Duration
}

// Report is what the bucket tells at now somebody who asks for unit tokens, after a
// decision or instead of one. It is found by trying: at the first moment at which the same
// request would be granted, if nobody else did anything. Whoever holds a lease is taken to
// spend all of it when it ends.
func (b Bucket) Report(now int64, l Limit, unit int64) Report {
	b.redate(now) // b is a copy: a look writes nothing
	seen := b.Seen(now, l)
	return Report{
		Remaining: seen.Left(now, l),
		At:        now,
		RetryAfter: until(now, b.first(now, func(at int64) bool {
			seen := b.Seen(at, l)
			return seen.Left(at, l) >= unit
		})),
		ResetAfter: until(now, b.first(now, func(at int64) bool {
			seen := b.Seen(at, l)
			return seen.Full <= at && seen.Leased == 0
		})),
	}
}

func until(now, at int64) time.Duration {
	if at == Forever {
		return Forever
	}
	return time.Duration(max(0, at-now))
}

// first moment from now on at which something holds. What holds stays so, but for the end
// of the leases: after that it may have to become true again.
func (b *Bucket) first(now int64, holds func(at int64) bool) int64 {
	if b.Leased > 0 && b.Until > now {
		if at := search(now, b.Until-1, holds); holds(at) {
			return at
		}
		now = b.Until
	}
	return search(now, Forever, holds)
}

// search for the first moment in a span, ends included; its end if there is none.
func search(from, to int64, holds func(at int64) bool) int64 {
	for from < to {
		if middle := from + (to-from)/2; holds(middle) {
			to = middle
		} else {
			from = middle + 1
		}
	}
	return from
}
