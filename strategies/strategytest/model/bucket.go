package model

import "math/big"

// Step is how far ahead of the clock a row may be dated, in nanoseconds. A row that is
// further ahead was written before the clock stepped back.
const Step = 10_000_000

// Bucket is a row and the operations on it. Times are nanoseconds of the database's
// clock. The zero value is a bucket without a row, which is full.
//
// The fields are exported for tests that compare them with a table.
type Bucket struct {
	Exists bool

	Full  int64 // when the bucket is full again
	Token int64 // the price of a token at the last write
	At    int64 // when the last write was

	// Leased is how many nanoseconds of the window leases set aside, at the row's price.
	// They cannot be taken and are not refilled until Until, when they count as spent.
	Leased, Until int64

	Paused int64 // nothing can be taken before; 0: it was never paused

	fault fault // set by the tests of this package
}

// Take grants as many of want tokens as there are, in whole units.
func (b *Bucket) Take(now int64, l Limit, want, unit int64) (granted int64) {
	granted, _ = b.TakeAhead(now, l, want, unit, 0)
	return granted
}

// TakeAhead also grants tokens that come back within ahead. The last of what it grants is due
// after delay: a bucket that nobody else takes from owes no more than its window then.
func (b *Bucket) TakeAhead(now int64, l Limit, want, unit, ahead int64) (granted, delay int64) {
	b.redate(now)
	seen := b.Seen(now, l)
	granted = min(want, max(0, plus(l.Window(), ahead)-seen.used(now))/l.Token) / unit * unit
	// What is leased is used on top of a unit, whenever that is due.
	if plus(times(unit, l.Token), seen.Leased) > l.Window() && b.fault != aheadOfLeases {
		granted = 0
	}
	if granted == 0 { // a denial writes nothing
		return 0, 0
	}
	*b = seen
	b.Full = plus(max(b.Full, now), times(granted, l.Token))
	return granted, b.first(now, func(at int64) bool { return b.Seen(at, l).used(at) <= l.Window() }) - now
}

// Reset fills the bucket.
func (b *Bucket) Reset() { *b = Bucket{fault: b.fault} }

// Refund gives back n tokens that were granted at grantedAt, the last of them due after delay. It
// gives back less what was refilled since they were due, or reserved behind them: what was reserved
// keeps its times. If there is either, it gives back a window at most, because more tokens than
// that were due at different times.
//
// A row that was last written at another price gets nothing. Neither does a grant that is dated
// after both the row and the clock: the clock has stepped back since, and nobody knows how long
// ago the grant was.
func (b *Bucket) Refund(now int64, l Limit, n, grantedAt, delay int64) {
	if !b.Exists || b.Token != l.Token {
		return
	}
	later := max(now, b.At)
	if later < grantedAt && b.fault != refundsAcrossAStep {
		return
	}
	due, back := grantedAt+delay, times(n, l.Token)
	// Up to this time, all tokens have been refilled or taken.
	until := max(later, b.Full-l.Window()+min(b.Leased, l.Window()))
	if b.fault == refundsReserved {
		until = later
	}
	if until > due && b.fault != refundsTooMuch {
		if b.fault != refundsManyAtOnce {
			back = min(back, l.Window())
		}
		back -= until - due
	}
	if back > 0 && b.Full > now {
		b.Full = max(b.Full-back, now)
	}
}

// Pause lets nothing be taken for so long, or as long as an earlier Pause does. What was used stays used.
func (b *Bucket) Pause(now, length int64) {
	b.redate(now)
	if !b.Exists {
		*b = Bucket{Exists: true, Full: now, Token: 1, At: now, fault: b.fault}
	}
	until := max(now, b.At) + length
	if b.paused() {
		until = max(until, b.Paused)
	}
	b.expire(now)
	b.At = max(b.At, now)
	b.Full = max(b.Full, b.At)
	b.Paused = until
}

// paused says that there was a Pause and that nobody has taken since its end, if that has come.
func (b *Bucket) paused() bool { return b.Paused > b.At }

// behind the pause there is one token, and the others come back after it. The row must be at the price of l.
func (b *Bucket) behind(l Limit) {
	b.Full = max(b.Full, plus(b.Paused, l.Window()-l.Token))
}

// redate corrects the row if the clock has stepped back since it was written: it is dated now,
// and the bucket owes now what it owed then. The time between is not credited, because nobody
// knows how long it was. The corrected row is written even for a denial.
func (b *Bucket) redate(now int64) {
	if !b.Exists || b.At <= now+Step || b.fault == noStep {
		return
	}
	ahead := b.At - now
	b.Full, b.Until, b.Paused, b.At = b.Full-ahead, b.Until-ahead, b.Paused-ahead, now
	if b.fault == forgetsAtAStep {
		b.Full = now
	}
}

// Seen is the row as of now, at the price of l.
func (b Bucket) Seen(now int64, l Limit) Bucket {
	if !b.Exists {
		return Bucket{Exists: true, Full: now, Token: l.Token, At: now, fault: b.fault}
	}
	paused := b.paused()
	b.expire(now)
	b.convert(now, l)
	b.At = max(b.At, now)
	if paused {
		b.behind(l)
	}
	return b
}

// expire counts expired leases as spent when they expired. That is a write like any other, so
// At moves to that time: otherwise a cheaper limit would credit time before it.
func (b *Bucket) expire(now int64) {
	if b.Leased == 0 || b.Until > now {
		return
	}
	if b.fault != leaseVanishes {
		b.Full = plus(max(b.Full, b.Until), b.Leased)
	}
	if b.fault != expiresUndated {
		b.At = max(b.At, b.Until)
	}
	b.Leased = 0
}

// convert converts the row to another price. Used tokens stay used, as tokens. Since the row
// was written they have been refilled at the faster of both rates.
func (b *Bucket) convert(now int64, l Limit) {
	if b.Token == l.Token {
		return
	}
	if b.fault != noConversion {
		b.Full = plus(max(now, b.At), dividedUp(b.owed(now, l), b.Token))
		b.Leased = dividedUp(product(b.Leased, l.Token), b.Token)
	}
	if b.fault == clamps {
		b.Full = min(b.Full, plus(b.At, l.Window()))
	}
	b.Token = l.Token
}

// owed is what the bucket owes at the later of now and At, to somebody who pays another price. It is in
// token × token nanoseconds: both prices are factors, so nothing is rounded yet.
func (b *Bucket) owed(now int64, l Limit) *big.Int {
	owed := product(max(0, b.Full-b.At), l.Token)
	if now > b.At {
		asOld := product(max(0, b.Full-now), l.Token)
		asNew := owed.Sub(owed, product(now-b.At, b.Token))
		if owed = asNew; asOld.Cmp(asNew) < 0 {
			owed = asOld
		}
		if owed.Sign() < 0 {
			owed = new(big.Int)
		}
	}
	return owed
}

// has says whether the bucket has that much of the window at now, or more. It asks the row itself: at
// another price, the time at which it is full may be later than what a row can hold.
func (b Bucket) has(now int64, l Limit, part int64) bool {
	b.expire(now)
	used := product(max(b.Full, now)-now, 1)
	if b.Exists && b.Token != l.Token {
		used = product(dividedUp(b.owed(now, l), b.Token), 1)
		used.Add(used, product(max(now, b.At)-now, 1))
	}
	used.Add(used, product(b.Seen(now, l).Leased, 1))
	return used.Add(used, product(part, 1)).Cmp(product(l.Window(), 1)) <= 0
}

// Left is how many whole tokens can be taken. The row must be at the price of l.
func (b *Bucket) Left(now int64, l Limit) int64 {
	return max(0, l.Window()-b.used(now)) / l.Token
}

// used is how many nanoseconds of the window cannot be taken.
func (b Bucket) used(now int64) int64 {
	if b.fault == leaseNotAside {
		return max(b.Full, now) - now
	}
	return plus(max(b.Full, now)-now, b.Leased)
}
