// Package bucket is the arithmetic of a bucket, as the SQL has it.
package bucket

import (
	"math"
	"math/big"
	"sort"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Row of a bucket: the time at which the bucket is full again, and two notes of the last
// write. All are nanoseconds; times count from 1970 by the database's clock. The zero Row
// stands for a missing row, which means a full bucket.
//
// The arithmetic is the same as in read_full_ns.sql and token_bucket_read.sql of
// migrations/functions. It is here in Go for ForUpdateNowait, which decides in Go, and for the
// fields of a decision.
type Row struct {
	FullNS  int64
	TokenNS int64 // the price of a token under the limit of the last write
	AtNS    int64 // when the last write was

	// The part of the window that leases set aside until UntilNS. Only token_bucket has leases. Without
	// a lease, UntilNS is zero, or the end of a calendar window, in which FullNS - UntilNS tokens were taken.
	LeasedNS, UntilNS int64
}

// InCalendar says that the row is of a calendar window.
func (b Row) InCalendar() bool { return b.LeasedNS == 0 && b.UntilNS > 0 }

// Seen is the row as it means to a caller whose calendar window ends at endsNS; zero, if the limit has
// none. It is the same as what token_bucket_read.sql does with a row of the other kind.
func (b Row) Seen(nowNS, tokenNS, endsNS int64) Row {
	switch {
	case !b.InCalendar() && endsNS == 0:
		return b
	case b == Row{}:
		return Row{FullNS: endsNS, TokenNS: tokenNS, AtNS: nowNS, UntilNS: endsNS}
	}
	if endsNS > 0 && b.FarAhead(nowNS) {
		b.FullNS, b.UntilNS = b.FullNS-b.UntilNS+endsNS, endsNS
	}
	b = b.Stepped(nowNS)
	nowNS = max(nowNS, b.AtNS)
	var used *big.Int
	switch {
	case !b.InCalendar():
		owedNS, leasedNS := b.owes(nowNS, b.TokenNS)
		used = big.NewInt(ratio(big.NewInt(owedNS), b.TokenNS))
		used.Add(used, big.NewInt(ratio(big.NewInt(leasedNS), b.TokenNS)))
	case b.UntilNS > nowNS:
		used = big.NewInt(b.FullNS - b.UntilNS)
		if endsNS > 0 {
			endsNS = max(endsNS, b.UntilNS)
		}
	default:
		used = new(big.Int)
	}
	if endsNS > 0 {
		return Row{FullNS: ratio(used.Add(used, big.NewInt(endsNS)), 1), TokenNS: tokenNS, AtNS: nowNS, UntilNS: endsNS}
	}
	fullNS := ratio(used.Add(used.Mul(used, big.NewInt(tokenNS)), big.NewInt(b.AtNS)), 1)
	return Row{FullNS: max(nowNS, fullNS), TokenNS: tokenNS, AtNS: nowNS}
}

// StepNS is the same as in step_ns.sql: a row that is further ahead of the clock was written
// before the clock stepped back.
const StepNS = int64(10 * time.Millisecond)

// Fields returns pointers to the columns of a row, in the order in which statements return them.
func (b *Row) Fields() []any { return []any{&b.FullNS, &b.TokenNS, &b.AtNS} }

// FullBy is when the bucket is full if nobody takes any: leases that are not settled count as spent
// when they expire.
func (b Row) FullBy() int64 {
	if b.LeasedNS == 0 {
		return b.FullNS
	}
	fromNS := max(b.FullNS, b.UntilNS)
	return fromNS + min(b.LeasedNS, math.MaxInt64-fromNS)
}

// Ahead says that the clock has stepped back since the row was written.
func (b Row) Ahead(nowNS int64) bool { return b.AtNS > nowNS+StepNS }

// windowStepNS is the same as in window_step_ns.sql.
const windowStepNS = int64(24 * time.Hour)

// FarAhead says that the row is of a calendar window, and that the clock has stepped back since by more than
// windowStepNS. Then the window ends with the caller's.
func (b Row) FarAhead(nowNS int64) bool {
	return b.InCalendar() && b.AtNS > nowNS+windowStepNS
}

// Dated is when a decision by this row was made: not before the grants that it counts, unless the
// clock has stepped back since.
func (b Row) Dated(nowNS int64) int64 {
	if b.Ahead(nowNS) {
		return nowNS
	}
	return max(nowNS, b.AtNS)
}

// Stepped returns the row; if the clock has stepped back since it was written, corrected so
// that the bucket owes now what it owed when it was written.
func (b Row) Stepped(nowNS int64) Row {
	if by := b.AtNS - nowNS; by > StepNS && b.InCalendar() { // its end does not move with the clock
		b.AtNS = nowNS
	} else if by > StepNS {
		b.FullNS, b.AtNS, b.UntilNS = max(1, b.FullNS-by), nowNS, max(0, b.UntilNS-by)
	}
	return b
}

// owes returns how long after nowNS the bucket is full, not counting leases, and what leases set aside. Both
// are as of nowNS, converted to the price tokenNS of a token. The first is negative if it was full earlier,
// and at most the largest integer, which is more than any window.
func (b Row) owes(nowNS, tokenNS int64) (owedNS, leasedNS int64) {
	if b.InCalendar() {
		b = b.Seen(nowNS, tokenNS, 0)
	}
	b = b.Stepped(nowNS)
	if b.LeasedNS > 0 && b.UntilNS <= nowNS { // an expired lease counts as spent when it expired
		b.FullNS = b.FullBy()
		b.AtNS = max(b.AtNS, b.UntilNS)
		b.LeasedNS = 0
	}
	if b.TokenNS == tokenNS || b.TokenNS == 0 {
		return b.FullNS - nowNS, b.LeasedNS
	}
	// Used tokens stay used, as tokens. Since the last write they have been refilled at the
	// faster of both rates.
	laterNS := max(nowNS, b.AtNS)
	asWritten := product(b.FullNS-laterNS, tokenNS)
	asAsked := product(b.FullNS-b.AtNS, tokenNS)
	asAsked.Sub(asAsked, product(laterNS-b.AtNS, b.TokenNS))
	if asAsked.Cmp(asWritten) < 0 {
		asWritten = asAsked
	}
	aheadNS := laterNS - nowNS
	return aheadNS + min(ratio(asWritten, b.TokenNS), math.MaxInt64-aheadNS), ratio(product(b.LeasedNS, tokenNS), b.TokenNS)
}

// product does not overflow.
func product(a, b int64) *big.Int {
	return new(big.Int).Mul(big.NewInt(a), big.NewInt(b))
}

// ratio is a / b, rounded up, from zero to the largest integer.
func ratio(a *big.Int, b int64) int64 {
	if a.Sign() <= 0 {
		return 0
	}
	quotient, rest := new(big.Int).QuoRem(a, big.NewInt(b), new(big.Int))
	if !quotient.IsInt64() || quotient.Int64() == math.MaxInt64 {
		return math.MaxInt64
	}
	if rest.Sign() > 0 {
		return quotient.Int64() + 1
	}
	return quotient.Int64()
}

// tokens returns how many tokens can be taken at nowNS under the limit.
func (b Row) tokens(nowNS int64, limit rate.Limit) int64 {
	freeNS, _ := b.free(nowNS, limit)
	return max(0, freeNS) / int64(limit.Token())
}

// free returns how many nanoseconds of the window can be taken at nowNS; negative, if the bucket
// owes more. room is the window without what leases set aside. A lease of more than the window
// counts as a little more than it, so that no sum overflows.
func (b Row) free(nowNS int64, limit rate.Limit) (freeNS, roomNS int64) {
	windowNS := int64(limit.Window())
	if limit.Calendar != "" {
		if b = b.Stepped(nowNS); b.UntilNS > nowNS {
			return windowNS - (b.FullNS - b.UntilNS), windowNS
		}
		return windowNS, windowNS
	}
	owedNS, leasedNS := b.owes(nowNS, int64(limit.Token()))
	roomNS = windowNS - min(windowNS+1, leasedNS)
	return roomNS - max(0, owedNS), roomNS
}

// Within returns how many tokens can be taken at nowNS or come back within the request's Ahead.
// If a unit does not fit into what leases leave of the window, none can: see in_turn.sql.
func (b Row) Within(nowNS int64, r *rate.Request) int64 {
	freeNS, roomNS := b.free(nowNS, r.Limit)
	if tokenNS := int64(r.Limit.Token()); max(r.Unit, 1) <= roomNS/tokenNS {
		return max(0, freeNS+int64(r.Ahead)) / tokenNS
	}
	return 0
}

// asOf returns the row as it would be written at nowNS, at the price tokenNS of a token.
func (b Row) asOf(nowNS, tokenNS int64) Row {
	owedNS, leasedNS := b.owes(nowNS, tokenNS)
	b = b.Stepped(nowNS)
	seen := Row{FullNS: nowNS + min(owedNS, math.MaxInt64-nowNS), TokenNS: tokenNS, AtNS: max(b.AtNS, nowNS)}
	if leasedNS > 0 {
		seen.LeasedNS, seen.UntilNS = leasedNS, b.UntilNS
	}
	return seen
}

// Take returns the bucket after tokens were taken at nowNS. The bucket must have that many, and be as Seen.
func (b Row) Take(nowNS, tokens int64, limit rate.Limit) Row {
	if limit.Calendar == "" {
		b = b.asOf(nowNS, int64(limit.Token()))
		b.FullNS = max(b.FullNS, nowNS)
	}
	b.AtNS = max(b.AtNS, nowNS)
	b.FullNS += tokens * b.TokenNS
	return b
}

// Grantable returns how many tokens the request can be granted, in whole multiples of its unit.
func (b Row) Grantable(nowNS int64, r *rate.Request) int64 {
	unit := max(r.Unit, 1)
	return min(r.Tokens, b.Within(nowNS, r)) / unit * unit
}

// wait is the time, from nowNS, until that many tokens are there if nobody takes any.
func (b Row) wait(nowNS, tokens int64, limit rate.Limit) time.Duration {
	return RoundUp(b.untilFree(nowNS, tokens*int64(limit.Token()), limit))
}

// RoundUp is that many nanoseconds, rounded up to microseconds, in which the database's clock counts.
func RoundUp(ns int64) time.Duration {
	if rest := ns % 1000; rest > 0 {
		ns += min(1000-rest, math.MaxInt64-ns)
	}
	return time.Duration(ns)
}

// untilFree is the time in nanoseconds, from nowNS, until that much of the window is free if
// nobody takes any. For nothing, that is until the bucket no longer owes more than the window.
func (b Row) untilFree(nowNS, partNS int64, limit rate.Limit) int64 {
	b = b.Stepped(nowNS)
	if limit.Calendar != "" {
		if freeNS, _ := b.free(nowNS, limit); freeNS < partNS {
			return b.UntilNS - nowNS
		}
		return 0
	}
	if (b.TokenNS == int64(limit.Token()) || b.TokenNS == 0) && b.LeasedNS == 0 && !b.InCalendar() {
		return max(0, b.FullNS-nowNS-(int64(limit.Window())-partNS))
	}
	// After another limit or with a lease there is no formula, but more gets free with time, so a
	// binary search finds it. When a lease ends, less may be free: search before that end or
	// after it.
	there := func(ns int) bool {
		freeNS, _ := b.free(nowNS+int64(ns), limit)
		return freeNS >= partNS
	}
	from, to := 0, int(math.MaxInt64-nowNS)
	if end := int(b.UntilNS - nowNS); b.LeasedNS > 0 && end > 0 {
		if there(end - 1) {
			to = end
		} else {
			from = end
		}
	}
	return int64(from + sort.Search(to-from, func(ns int) bool { return there(from + ns) }))
}

// InTime says of a group that was granted that each of its calendar windows lasts until all of its tokens are due, and
// as much longer as a process waits, see [AtMost].
func InTime(group []rate.Request, decisions []rate.Decision) bool {
	var due time.Time
	for i := range group {
		if d := &decisions[i]; d.Delay > 0 && d.At.Add(d.Delay).After(due) {
			due = d.At.Add(d.Delay)
		}
	}
	for i := range group {
		if d := &decisions[i]; group[i].Limit.Calendar != "" && !due.Before(d.At.Add(AtLeast(d.ResetAfter))) {
			return false
		}
	}
	return true
}

// Decision is the answer to the request: what was granted, and the bucket after that.
func (b Row) Decision(r *rate.Request, nowNS, granted int64) rate.Decision {
	unit := max(r.Unit, 1)
	d := rate.Decision{
		Allowed:    granted > 0,
		Granted:    granted,
		Remaining:  b.tokens(nowNS, r.Limit),
		RetryAfter: b.wait(nowNS, unit, r.Limit),
		ResetAfter: b.wait(nowNS, r.Limit.Burst, r.Limit),
		HasRow:     b.AtNS > 0,
		At:         time.Unix(0, nowNS).UTC(),
	}
	if r.Tokens == 0 {
		d.Allowed = d.Remaining >= unit
	}
	if granted > 0 && r.Ahead > 0 {
		d.Delay = time.Duration(b.untilFree(nowNS, 0, r.Limit))
	}
	return d
}
