package model

// LeaseRequest is a pglimit.LeaseRequest for one bucket, with times in nanoseconds.
type LeaseRequest struct {
	Want, Share, TTL int64

	// Settle is how many tokens an earlier lease has that ends with this call. Spent of them
	// were spent; it expires at SettleUntil.
	Settle, Spent, SettleUntil int64
}

// Lease settles an earlier lease and sets tokens aside for a new one: at most one in Share of
// the tokens left. All leases of a bucket that are out end together, when the first of them
// does. If less than a fifth of TTL is left until then, there is no new lease.
func (b *Bucket) Lease(now int64, l Limit, r LeaseRequest) (granted, until int64) {
	b.redate(now)
	ended := b.paused() && b.Paused <= now
	b.settle(now, r.Settle, r.Spent, r.SettleUntil)
	if ended && b.Token == l.Token {
		b.behind(l)
		b.Paused = 0
	}
	seen := b.Seen(now, l)
	until = plus(now, r.TTL)
	if seen.Leased > 0 {
		until = seen.Until
	}
	if until-now >= r.TTL/5 {
		granted = min(r.Want, seen.Left(now, l)/r.Share)
	}
	if granted > 0 {
		*b = seen
		b.Leased, b.Until = plus(b.Leased, times(granted, l.Token)), until
	}
	return granted, until
}

// settle takes n tokens out of the set-aside part, and charges the spent tokens as if they were
// taken now. It uses the row's own price, which may have changed since the lease. A lease
// that the row does not know any more is settled already.
func (b *Bucket) settle(now, n, spent, until int64) {
	if n == 0 || b.Leased < times(n, b.Token) || b.Until != until || until <= now {
		return
	}
	b.Leased -= n * b.Token
	if b.fault != settlesFree {
		b.Full = plus(max(b.Full, now), times(spent, b.Token))
	}
	b.At = max(b.At, now)
}
