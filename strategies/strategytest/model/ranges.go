package model

import (
	"slices"
	"time"
)

// Ranges is the rule of exclusion_range, whose bursts are one: a grant is a range of time,
// in whole microseconds, and no two overlap. A changed limit counts from the next grant on;
// the range of the last one stays. The zero value has no range.
type Ranges struct{ All []Range }

// Range of time, its end not included.
type Range struct{ From, Till int64 }

// Take grants a token if no range holds now or anything later.
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

// redate is that of a [Bucket]: where a range begins ahead of the clock, the last one begins
// now, and takes the place of all that have not ended.
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

// till when the token is gone, or now.
func (b *Ranges) till(now int64) int64 {
	for _, r := range b.All {
		now = max(now, r.Till)
	}
	return now
}

// Report is what the ranges tell at now.
func (b Ranges) Report(now int64, _ Limit, _ int64) Report {
	b.redate(now) // a copy
	r := Report{Remaining: 1, At: now}
	if wait := b.till(now) - now; wait > 0 {
		r.Remaining, r.RetryAfter, r.ResetAfter = 0, time.Duration(wait), time.Duration(wait)
	}
	return r
}

// Refund removes the range of the grant.
func (b *Ranges) Refund(_ int64, _ Limit, _, grantedAt int64) {
	b.All = slices.DeleteFunc(b.All, func(r Range) bool { return r.From == grantedAt })
}

// Sweep forgets the ranges that had ended by then.
func (b *Ranges) Sweep(ended int64) {
	b.All = slices.DeleteFunc(b.All, func(r Range) bool { return r.Till <= ended })
}

// Reset removes all ranges.
func (b *Ranges) Reset() { *b = Ranges{} }
