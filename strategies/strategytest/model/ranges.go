package model

import (
	"slices"
	"time"
)

// Ranges is the rule of exclusion_range, which keeps a burst of one: a grant is a range of
// time, in whole microseconds, and no two ranges overlap. A changed limit counts from the next
// grant on; the range of the last grant stays. The zero value has no range.
type Ranges struct{ All []Range }

// Range is a range of time, its end not included.
type Range struct{ From, Till int64 }

// Take grants a token if no range contains now or a later time.
func (b *Ranges) Take(now int64, l Limit, want, _ int64) (granted int64) {
	if want < 1 {
		return 0
	}
	b.redate(now)
	if b.till(now) > now {
		return 0
	}
	const microsecond = 1000
	interval := (l.Token + microsecond - 1) / microsecond * microsecond
	b.All = append(b.All, Range{now, plus(now, interval)})
	return 1
}

// TakeAhead is Take: a range cannot be reserved.
func (b *Ranges) TakeAhead(now int64, l Limit, want, unit, _ int64) (granted, delay int64) {
	return b.Take(now, l, want, unit), 0
}

// redate corrects the ranges if one begins ahead of the clock, because the clock has stepped
// back: the last range now begins at once, and replaces all ranges that have not ended.
func (b *Ranges) redate(now int64) {
	var ahead bool
	var last Range
	for _, r := range b.All {
		ahead = ahead || r.From > now+Step
		if r.Till > last.Till {
			last = r
		}
	}
	if ahead {
		b.All = slices.DeleteFunc(slices.Clone(b.All), func(r Range) bool { return r.Till > now })
		b.All = append(b.All, Range{now, plus(now, last.Till-last.From)})
	}
}

// till is the time until which the token is taken, or now.
func (b *Ranges) till(now int64) int64 {
	for _, r := range b.All {
		now = max(now, r.Till)
	}
	return now
}

// Report is the report of the bucket at now.
func (b Ranges) Report(now int64, _ Limit, _ int64) Report {
	b.redate(now) // a copy
	r := Report{Remaining: 1, At: now}
	if wait := b.till(now) - now; wait > 0 {
		r.Remaining, r.RetryAfter, r.ResetAfter = 0, time.Duration(wait), time.Duration(wait)
	}
	return r
}

// Refund removes the range of the grant.
func (b *Ranges) Refund(_ int64, _ Limit, _, grantedAt, _ int64) {
	b.All = slices.DeleteFunc(b.All, func(r Range) bool { return r.From == grantedAt })
}

// Sweep removes the ranges that end at or before that time.
func (b *Ranges) Sweep(ended int64) {
	b.All = slices.DeleteFunc(b.All, func(r Range) bool { return r.Till <= ended })
}

// Reset removes all ranges.
func (b *Ranges) Reset() { *b = Ranges{} }
