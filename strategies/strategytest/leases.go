package strategytest

import (
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// leaseOf so many tokens, of all that are there, for longer than the test.
func (s *suite) leaseOf(key string, limit rate.Limit, tokens int64) rate.LeaseRequest {
	return rate.LeaseRequest{Limiter: s.limiter, Key: key, Limit: limit, Tokens: tokens, Share: 1, TTL: time.Hour}
}

// settling is a request that ends the lease, and takes no other.
func (s *suite) settling(key string, limit rate.Limit, lease rate.Lease, spent int64) rate.LeaseRequest {
	r := s.leaseOf(key, limit, 0)
	r.Settle, r.Spent = lease, spent
	return r
}

func (s *suite) leaseOn(session rate.Session, r rate.LeaseRequest) rate.Lease {
	s.Helper()
	lease, err := capable[rate.Leaser](s).Lease(s.Context(), session, r)
	if err != nil {
		s.Fatalf("Lease: %v", err)
	}
	return lease
}

// leases checks what the answer says: so many tokens, for no longer than was asked, and of the
// bucket what a peek says, too.
func (s *suite) leases(r rate.LeaseRequest, tokens, remaining int64) rate.Lease {
	s.Helper()
	lease := s.leaseOn(s.session, r)
	if lease.Tokens != tokens {
		s.Errorf("leased %d tokens of %d, want %d", lease.Tokens, r.Tokens, tokens)
	}
	if lease.At.IsZero() || lease.At.Location() != time.UTC {
		s.Errorf("At is %v: want the database's time in UTC", lease.At)
	}
	if lasts := lease.Until.Sub(lease.At); tokens > 0 && (lasts <= 0 || lasts > r.TTL) {
		s.Errorf("the lease lasts %v, want %v at most", lasts, r.TTL)
	}
	s.has(r.Key, r.Limit, remaining)
	left, peek := lease.Left, s.peek(r.Key, r.Limit)
	if left.Allowed != peek.Allowed || left.Granted != 0 || left.Remaining != peek.Remaining || left.Contended ||
		!sameMoment(left, left.RetryAfter, peek, peek.RetryAfter) || !sameMoment(left, left.ResetAfter, peek, peek.ResetAfter) {
		s.Errorf("the lease says of the bucket %+v, a peek says %+v", left, peek)
	}
	return lease
}

// sameMoment says whether two decisions mean the same by what they say, to the microsecond.
func sameMoment(a rate.Decision, afterA time.Duration, b rate.Decision, afterB time.Duration) bool {
	if afterA == 0 || afterB == 0 {
		return afterA == afterB
	}
	return a.At.Add(afterA).Sub(b.At.Add(afterB)).Abs() <= time.Microsecond
}

// has checks how many tokens a peek finds.
func (s *suite) has(key string, limit rate.Limit, tokens int64) {
	s.Helper()
	if d := s.peek(key, limit); d.Remaining != tokens || d.Allowed != (tokens > 0) {
		s.Errorf("a peek finds %d tokens, and is allowed %v; want %d", d.Remaining, d.Allowed, tokens)
	}
}

func (s *suite) leasable(burst int64) rate.Limit {
	s.Helper()
	capable[rate.Leaser](s)
	return s.needs(slow(burst))
}

// Nobody else can take what is leased; what was not spent of it comes back, once.
func leaseSetsAside(s *suite) {
	limit := s.leasable(10)
	lease := s.leases(s.leaseOf("k", limit, 4), 4, 6)
	s.wants(s.take("k", limit, 7, 7), 0, 6)
	s.wants(s.take("k", limit, 10, 1), 6, 0)
	s.wants(s.take("k", limit, 1, 1), 0, 0)
	s.leases(s.leaseOf("k", limit, 1), 0, 0)
	for range 2 { // the second time there is nothing to settle
		s.leases(s.settling("k", limit, lease, 1), 0, 3)
	}
	s.wants(s.take("k", limit, 10, 1), 3, 0)
	s.wants(s.take("k", limit, 1, 1), 0, 0)

	// All of it was spent; and the next lease in the same call.
	lease = s.leases(s.leaseOf("all", limit, 10), 10, 0)
	s.leases(s.settling("all", limit, lease, 10), 0, 0)
	lease = s.leases(s.leaseOf("next", limit, 5), 5, 5)
	next := s.leaseOf("next", limit, 9)
	next.Settle, next.Spent = lease, 3
	lease = s.leases(next, 7, 0)
	s.leases(s.settling("next", limit, lease, 0), 0, 7)
}

// A lease is of one in Share of what is left, rounded down, or of less.
func leaseShares(s *suite) {
	limit := s.leasable(100)
	s.wants(s.take("k", limit, 10, 10), 10, 90)
	share := func(tokens, share int64) rate.LeaseRequest {
		r := s.leaseOf("k", limit, tokens)
		r.Share = share
		return r
	}
	s.leases(share(1000, 3), 30, 60)
	s.leases(share(5, 3), 5, 55)
	s.leases(share(50, 2), 27, 28)
	s.leases(share(50, 29), 0, 28)
	s.leases(share(50, 28), 1, 27)
	s.leases(share(50, 1), 27, 0)
	s.leases(share(50, 1), 0, 0)
}

// Zero tokens only settle, and if there is nothing to settle, nothing happens.
func leaseOfNothing(s *suite) {
	limit := s.leasable(10)
	s.leases(s.leaseOf("new", limit, 0), 0, 10)
	s.take("used", limit, 4, 4)
	s.leases(s.leaseOf("used", limit, 0), 0, 6)
	lease := s.leases(s.leaseOf("used", limit, 6), 6, 0)
	s.leases(s.leaseOf("used", limit, 0), 0, 0)
	s.leases(s.settling("used", limit, lease, 2), 0, 4)
}

// Several leases of a bucket are settled each on its own, in any order.
func leasesOfOneBucket(s *suite) {
	limit := s.leasable(10)
	a := s.leases(s.leaseOf("k", limit, 3), 3, 7)
	b := s.leases(s.leaseOf("k", limit, 4), 4, 3)
	c := s.leases(s.leaseOf("k", limit, 2), 2, 1)
	other := s.leases(s.leaseOf("other", limit, 5), 5, 5)
	s.leases(s.settling("k", limit, b, 1), 0, 4)
	s.leases(s.settling("k", limit, c, 2), 0, 4)
	s.wants(s.take("k", limit, 4, 4), 4, 0)
	s.leases(s.settling("k", limit, a, 0), 0, 3)
	s.leases(s.settling("other", limit, other, 5), 0, 5)
}

// What is not settled by the end of the lease is spent then, and flows back from then on. To
// settle it later changes nothing.
func leaseExpires(s *suite) {
	const ttl = 60 * time.Millisecond
	limit := s.leasable(10)
	over := func(key string, limit rate.Limit, tokens int64) rate.Lease {
		r := s.leaseOf(key, limit, tokens)
		r.TTL = ttl
		lease := s.leaseOn(s.session, r)
		if lease.Tokens != tokens || lease.Until.Sub(lease.At) > ttl {
			s.Errorf("%+v: want %d tokens for %v at most", lease, tokens, ttl)
		}
		s.until("the end of a lease", func() rate.Decision { return s.peek(key, limit) },
			func(d rate.Decision) bool { return !d.At.Before(lease.Until) })
		return lease
	}
	lease := over("k", limit, 4)
	s.has("k", limit, 6)
	s.leases(s.settling("k", limit, lease, 0), 0, 6)
	// Nor does it give back what others have leased since.
	other := s.leases(s.leaseOf("k", limit, 5), 5, 1)
	s.leases(s.settling("k", limit, lease, 0), 0, 1)
	s.leases(s.settling("k", limit, other, 2), 0, 4)
	s.wants(s.take("k", limit, 10, 1), 4, 0)

	quick := s.needs(rate.Every(2 * time.Millisecond).WithBurst(20))
	lease = over("quick", quick, 20)
	full := lease.Until.Add(quick.Window())
	before, at := s.until("all tokens of a lease that is over", func() rate.Decision { return s.take("quick", quick, 20, 20) },
		func(d rate.Decision) bool { return d.Allowed })
	s.onTime(before, at, full, 2*time.Microsecond)
}

// A bucket that was reset has forgotten its leases: to settle one gives nothing back.
func leaseAfterReset(s *suite) {
	limit := s.leasable(10)
	lease := s.leases(s.leaseOf("k", limit, 4), 4, 6)
	if err := capable[rate.Resetter](s).Reset(s.Context(), s.session, s.limiter, "k"); err != nil {
		s.Fatal(err)
	}
	s.has("k", limit, 10)
	s.wants(s.take("k", limit, 3, 3), 3, 7)
	s.leases(s.settling("k", limit, lease, 0), 0, 7)
	other := s.leases(s.leaseOf("k", limit, 5), 5, 2)
	s.leases(s.settling("k", limit, lease, 1), 0, 2)
	s.leases(s.settling("k", limit, other, 0), 0, 7)
}

// A lease that makes no sense is an error that names the field; nothing is set aside, and
// nothing settled.
func badLeases(s *suite) {
	limit := s.leasable(10)
	lease := s.leases(s.leaseOf("k", limit, 4), 4, 6)
	good := s.settling("k", limit, lease, 0)
	good.Tokens = 1
	refuses(s, good, map[string]func(*rate.LeaseRequest){
		"Spent: more spent than was leased": func(r *rate.LeaseRequest) { r.Spent = 5 },
		"Spent: spent, and no lease":        func(r *rate.LeaseRequest) { r.Settle, r.Spent = rate.Lease{}, 1 },
		"Spent: negative spent":             func(r *rate.LeaseRequest) { r.Spent = -1 },
		"Tokens: negative tokens":           func(r *rate.LeaseRequest) { r.Tokens = -1 },
		"Share: no share":                   func(r *rate.LeaseRequest) { r.Share = 0 },
		"Share: negative share":             func(r *rate.LeaseRequest) { r.Share = -1 },
		"TTL: no time":                      func(r *rate.LeaseRequest) { r.TTL = 0 },
		"TTL: too little time":              func(r *rate.LeaseRequest) { r.TTL = time.Millisecond - 1 },
		"TTL: negative time":                func(r *rate.LeaseRequest) { r.TTL = -time.Second },
		"Key: no key":                       func(r *rate.LeaseRequest) { r.Key = "" },
		"Key: NUL in the key":               func(r *rate.LeaseRequest) { r.Key = "k\x00" },
		"Limiter: no limiter":               func(r *rate.LeaseRequest) { r.Limiter = "" },
		"Durability: no such durability":    func(r *rate.LeaseRequest) { r.Durability = 7 },
		"Tokens: a limit of zero":           func(r *rate.LeaseRequest) { r.Limit = rate.PerSecond(0) },
		"Burst: negative burst":             func(r *rate.LeaseRequest) { r.Limit.Burst = -1 },
	}, func(bad rate.LeaseRequest) error {
		_, err := capable[rate.Leaser](s).Lease(s.Context(), s.session, bad)
		s.has("k", limit, 6)
		return err
	})
	s.leases(s.settling("k", limit, lease, 1), 0, 9)
}

// A lease and its settlement join the caller's transaction.
func leaseInTransaction(s *suite) {
	limit := s.leasable(10)
	var lease rate.Lease
	leased := func(tx Tx, r rate.LeaseRequest) {
		lease = s.leaseOn(tx, r)
		if d := s.takeAll(tx, s.ask(r.Key, limit, 0, 1))[0]; d.Remaining != lease.Left.Remaining {
			s.Errorf("%d remain in the transaction, want %d", d.Remaining, lease.Left.Remaining)
		}
	}
	s.joins(func(tx Tx) { leased(tx, s.leaseOf("k", limit, 4)) }, func(committed bool) {
		if committed {
			s.has("k", limit, 6)
		} else {
			s.leases(s.settling("k", limit, lease, 0), 0, 10)
		}
	})
	settled := s.settling("k", limit, lease, 1)
	s.joins(func(tx Tx) { leased(tx, settled) }, func(committed bool) {
		left := int64(6)
		if committed {
			left = 9
		}
		s.has("k", limit, left)
	})
}
