package model

// LeaseRequest is what pglimit.LeaseRequest asks of one bucket, in nanoseconds.
type LeaseRequest struct {
	Want, Share, TTL int64

	// An earlier lease that ends with this call, of which Spent tokens were spent.
	Settle, Spent, SettleUntil int64
}

// Lease settles an earlier lease and sets tokens aside for a new one: at most one in Share
// of those left. Leases of a bucket that are out together end together, when the first of
// them does; in the last fifth of that time there are no new ones.
func (b *Bucket) Lease(now int64, l Limit, r LeaseRequest) (granted, until int64) {
	b.redate(now)
	b.settle(now, r.Settle, r.Spent, r.SettleUntil)
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

// settle takes n tokens out of what is set aside, and charges those that were spent, as if
// now: all in the row's own price, which may have changed since the lease. A lease of which
// the row knows nothing any more is settled already.
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
