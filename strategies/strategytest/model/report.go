package model

import "time"

// Report has the fields of a pglimit.Decision that describe the bucket.
type Report struct {
	Remaining int64
	At        int64

	// RetryAfter and ResetAfter count from At. They end at the latest time that a row can hold.
	RetryAfter, ResetAfter time.Duration
}

// Report is the report at now for a request of unit tokens, after a decision or instead of
// one. It searches for the first moment at which the same request would be granted if nobody
// else did anything. It supposes that all tokens of a lease are spent when the lease ends.
func (b Bucket) Report(now int64, l Limit, unit int64) Report {
	b.redate(now) // b is a copy: a look writes nothing
	seen := b.Seen(now, l)
	if b.paused() { // the same request has to be behind the pause
		b = seen
		b.Paused = 0
	}
	return Report{
		Remaining:  seen.Left(now, l),
		At:         now,
		RetryAfter: time.Duration(b.first(now, func(at int64) bool { return b.has(at, l, times(unit, l.Token)) }) - now),
		ResetAfter: time.Duration(b.first(now, func(at int64) bool { return b.has(at, l, l.Window()) }) - now),
	}
}

// first returns the first moment from now on at which holds is true. Once true it stays true,
// except that it may become false when the leases end, and true again later.
func (b *Bucket) first(now int64, holds func(at int64) bool) int64 {
	if b.Leased > 0 && b.Until > now {
		if at := search(now, b.Until-1, holds); holds(at) {
			return at
		}
		now = b.Until
	}
	return search(now, Forever, holds)
}

// search returns the first moment in a span, ends included, at which holds is true, or to if there
// is none.
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
