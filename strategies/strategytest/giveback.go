package strategytest

import (
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

func (s *suite) giveBack(refunds ...rate.Refund) {
	s.Helper()
	if err := capable[rate.GiveBacker](s).GiveBack(s.Context(), s.session, refunds); err != nil {
		s.Errorf("GiveBack: %v", err)
	}
}

func (s *suite) refund(key string, limit rate.Limit, tokens int64, granted rate.Decision) rate.Refund {
	return rate.Refund{Request: s.ask(key, limit, tokens, tokens), At: granted.At}
}

// Tokens that are given back can be taken again, and no more than these.
func givenBack(s *suite) {
	one := s.needs(slow(1))
	s.giveBack()
	first := s.take("one", one, 1, 1)
	s.wants(s.take("one", one, 1, 1), 0, 0)
	s.giveBack(s.refund("one", one, 0, first))
	s.wants(s.take("one", one, 1, 1), 0, 0)
	s.giveBack(s.refund("one", one, 1, first))
	s.wants(s.take("one", one, 1, 1), 1, 0)
	s.wants(s.take("one", one, 1, 1), 0, 0)

	// Several refunds at once, in any order, and one for a bucket without a row.
	b, a := s.take("b", one, 1, 1), s.take("a", one, 1, 1)
	s.giveBack(s.refund("b", one, 1, b), s.refund("a", one, 1, a), s.refund("none", one, 1, a))
	for _, key := range []string{"a", "b", "none"} {
		s.wants(s.take(key, one, 1, 1), 1, 0)
		s.wants(s.take(key, one, 1, 1), 0, 0)
	}
	if s.strategy.Check(&rate.Request{Limit: slow(10)}) != nil {
		return
	}
	ten := slow(10)
	taken := s.take("ten", ten, 6, 6)
	s.giveBack(s.refund("ten", ten, 3, taken))
	s.wants(s.take("ten", ten, 10, 1), 7, 0)
	s.giveBack(s.refund("ten", ten, 0, taken))
	s.wants(s.take("ten", ten, 1, 1), 0, 0)

	// A bucket never has more than its burst.
	s.wants(s.take("little", ten, 1, 1), 1, 9)
	s.giveBack(s.refund("little", ten, 10, s.peek("little", ten)))
	s.wants(s.take("little", ten, 10, 1), 10, 0)
	s.wants(s.take("little", ten, 1, 1), 0, 0)
}

// A bucket that was reset has forgotten the grant.
func givenBackAfterReset(s *suite) {
	limit := s.needs(slow(1))
	old := s.take("k", limit, 1, 1)
	if err := capable[rate.Resetter](s).Reset(s.Context(), s.session, s.limiter, "k"); err != nil {
		s.Fatal(err)
	}
	s.giveBack(s.refund("k", limit, 1, old)) // to a bucket without a row
	s.wants(s.take("k", limit, 1, 1), 1, 0)
	s.wants(s.take("k", limit, 1, 1), 0, 0)
}

// A bucket whose limit has changed since gets nothing back.
func givenBackToAnotherLimit(s *suite) {
	before := s.needs(slow(10))
	after := rate.Every(1001 * time.Hour).WithBurst(10) // nearly the same, so that a wrong refund is worth tokens
	old := s.take("k", before, 5, 5)
	s.wants(s.take("k", after, 1, 1), 1, 4)
	s.giveBack(s.refund("k", before, 5, old))
	s.wants(s.take("k", after, 10, 1), 4, 0)
}

// Tokens that were refilled since a grant are not credited again: ten tokens are out until the
// bucket is full, and then none of them comes back.
func givenBackLate(s *suite) {
	limit := s.needs(rate.Every(time.Millisecond).WithBurst(40))
	out := s.take("k", limit, 10, 10)
	s.until("a full bucket", func() rate.Decision { return s.peek("k", limit) },
		func(d rate.Decision) bool { return d.ResetAfter == 0 })
	slower := rate.Every(time.Hour).WithBurst(40) // from here on, nothing flows back
	s.wants(s.take("k", slower, 20, 20), 20, 20)
	s.giveBack(s.refund("k", slower, 10, rate.Decision{At: out.At.Add(-24 * time.Hour)}))
	if d := s.peek("k", slower); d.Remaining != 20 {
		s.Errorf("%d remain, want 20", d.Remaining)
	}
}

func badRefunds(s *suite) {
	limit := s.needs(slow(1))
	good := s.refund("k", limit, 1, s.take("k", limit, 1, 1))
	refuses(s, good, map[string]func(*rate.Refund){
		"Key: NUL":         func(r *rate.Refund) { r.Key = "\x00" },
		"Limiter: none":    func(r *rate.Refund) { r.Limiter = "" },
		"Tokens: negative": func(r *rate.Refund) { r.Tokens, r.Unit = -1, 1 },
	}, func(bad rate.Refund) error {
		return capable[rate.GiveBacker](s).GiveBack(s.Context(), s.session, []rate.Refund{good, bad})
	})
	s.wants(s.take("k", limit, 1, 1), 0, 0) // none of the calls gave anything back
}

// A refund joins the caller's transaction.
func givenBackInTransaction(s *suite) {
	limit, strategy := s.needs(slow(1)), capable[rate.GiveBacker](s)
	taken := s.take("k", limit, 1, 1)
	s.joins(func(tx Tx) {
		if err := strategy.GiveBack(s.Context(), tx, []rate.Refund{s.refund("k", limit, 1, taken)}); err != nil {
			s.Error(err)
		}
	}, func(committed bool) {
		if d := s.peek("k", limit); d.Allowed != committed {
			s.Errorf("committed %v: available %v", committed, d.Allowed)
		}
	})
}
