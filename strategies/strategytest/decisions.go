package strategytest

import (
	"sync"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// slow refills so slowly that nothing comes back during a test.
func slow(burst int64) rate.Limit {
	return rate.Every(1000 * time.Hour).WithBurst(burst)
}

// The write-up's rule: allowed if the last allowed request is at least the
// interval ago.
func onePerPeriod(s *suite) {
	const interval = 20 * time.Millisecond
	limit := s.needs(rate.Every(interval))
	last := s.take("partner", limit, 1, 1)
	s.wants(last, 1, 0)
	for granted := 1; granted < 10; {
		d := s.take("partner", limit, 1, 1)
		if due := d.At.Sub(last.At) >= interval; d.Allowed != due {
			s.Fatalf("allowed %v, %v after the last one that was", d.Allowed, d.At.Sub(last.At))
		}
		if d.Allowed {
			last = d
			granted++
		}
	}
}

func burst(s *suite) {
	limit := s.needs(slow(5))
	for left := int64(4); left >= 0; left-- {
		s.wants(s.take("k", limit, 1, 1), 1, left)
	}
	for range 3 {
		s.wants(s.take("k", limit, 1, 1), 0, 0)
	}
}

func cost(s *suite) {
	limit := s.needs(slow(5))
	s.wants(s.take("k", limit, 3, 3), 3, 2)
	s.wants(s.take("k", limit, 3, 3), 0, 2)
	s.wants(s.take("k", limit, 2, 2), 2, 0)
	s.wants(s.take("all", limit, 5, 5), 5, 0)
}

func unit(s *suite) {
	limit := s.needs(slow(7))
	s.wants(s.take("pairs", limit, 10, 2), 6, 1)
	s.wants(s.take("pairs", limit, 10, 2), 0, 1)
	s.wants(s.take("pairs", limit, 10, 1), 1, 0)
	s.wants(s.take("less", limit, 5, 2), 4, 3)
	s.wants(s.take("much", limit, 1<<60, 1), 7, 0)
}

func peek(s *suite) {
	limit := s.needs(slow(1))
	for range 3 {
		d := s.peek("k", limit)
		if !d.Allowed || d.Granted != 0 || d.Remaining != 1 || d.RetryAfter != 0 || d.ResetAfter != 0 {
			s.Fatalf("peek at a full bucket: %+v", d)
		}
	}
	s.wants(s.take("k", limit, 1, 1), 1, 0)
	d := s.peek("k", limit)
	if d.Allowed || d.Granted != 0 || d.Remaining != 0 || d.RetryAfter <= 999*time.Hour {
		s.Fatalf("peek at an empty bucket: %+v", d)
	}
	if s.strategy.Check(&rate.Request{Limit: slow(5)}) != nil {
		return
	}
	s.take("of five", slow(5), 2, 2)
	for unit, allowed := range map[int64]bool{0: true, 3: true, 4: false} {
		if d := s.take("of five", slow(5), 0, unit); d.Allowed != allowed || d.Remaining != 3 {
			s.Errorf("peek for %d of 3 left: %+v", unit, d)
		}
	}
}

func reset(s *suite) {
	limit := s.needs(slow(1))
	s.wants(s.take("k", limit, 1, 1), 1, 0)
	s.wants(s.take("other", limit, 1, 1), 1, 0)
	for range 2 { // a full bucket may be reset too
		if err := capable[rate.Resetter](s).Reset(s.Context(), s.session, s.limiter, "k"); err != nil {
			s.Fatal(err)
		}
	}
	s.wants(s.take("k", limit, 1, 1), 1, 0)
	s.wants(s.take("other", limit, 1, 1), 0, 0)
}

func severalKeys(s *suite) {
	limit := s.needs(slow(1))
	s.take("b", limit, 1, 1)
	keys := []string{"c", "b", "é", "a", "B", "d"}
	var requests []rate.Request
	for _, key := range keys {
		requests = append(requests, s.ask(key, limit, 1, 1))
	}
	for i, d := range s.takeAll(s.session, requests...) {
		if want := keys[i] != "b"; d.Allowed != want {
			s.Errorf("key %q: allowed %v, want %v", keys[i], d.Allowed, want)
		}
	}
	if s.strategy.Check(&rate.Request{Limit: slow(9)}) != nil {
		return
	}
	mixed := s.takeAll(s.session, s.ask("z", slow(9), 4, 4), s.ask("y", slow(3), 5, 1), s.ask("x", slow(2), 0, 1))
	for i, want := range []struct{ granted, remaining int64 }{{4, 5}, {3, 0}, {0, 2}} {
		if mixed[i].Granted != want.granted || mixed[i].Remaining != want.remaining {
			s.Errorf("request %d: %+v, want %+v", i, mixed[i], want)
		}
	}
}

func sameKeyTwice(s *suite) {
	limit := s.needs(slow(1))
	decisions := s.takeAll(s.session, s.ask("k", limit, 1, 1), s.ask("a", limit, 1, 1), s.ask("k", limit, 1, 1))
	for i, want := range []bool{true, true, false} {
		if decisions[i].Allowed != want {
			s.Errorf("request %d: allowed %v, want %v", i, decisions[i].Allowed, want)
		}
	}
	if s.strategy.Check(&rate.Request{Limit: slow(5)}) != nil {
		return
	}
	decisions = s.takeAll(s.session, s.ask("five", slow(5), 3, 3), s.ask("five", slow(5), 3, 3), s.ask("five", slow(5), 2, 2))
	for i, want := range []int64{3, 0, 2} {
		if decisions[i].Granted != want {
			s.Errorf("request %d: granted %d, want %d", i, decisions[i].Granted, want)
		}
	}
}

func noRequests(s *suite) { s.takeAll(s.session) }

// Two first requests must yield a decision each, never a unique violation.
func firstRequests(s *suite) {
	for _, limit := range []rate.Limit{slow(1), slow(10)} {
		if s.strategy.Check(&rate.Request{Limit: limit}) != nil {
			continue
		}
		for range 10 {
			key := limit.String() + time.Now().String()
			decisions := make(chan rate.Decision, 16)
			var callers sync.WaitGroup
			for range cap(decisions) {
				callers.Go(func() {
					d, err := s.strategy.Take(s.Context(), s.session, []rate.Request{s.ask(key, limit, 1, 1)})
					if err != nil {
						s.Error(err)
						return
					}
					decisions <- d[0]
				})
			}
			callers.Wait()
			close(decisions)
			var granted int64
			contended := false
			for d := range decisions {
				granted += d.Granted
				contended = contended || d.Contended
			}
			if granted > limit.Burst || granted < limit.Burst && !contended || granted == 0 {
				s.Fatalf("%d granted of %d (contended: %v)", granted, limit.Burst, contended)
			}
		}
	}
}

func changedLimit(s *suite) {
	s.needs(slow(10))
	s.wants(s.take("raised", slow(10), 4, 4), 4, 6)
	s.wants(s.take("raised", slow(20), 1, 1), 1, 15)
	s.wants(s.take("lowered", slow(10), 8, 8), 8, 2)
	s.wants(s.take("lowered", slow(3), 1, 1), 0, 0)

	// An emptied bucket refills by the new limit, from the new burst.
	quick := rate.Every(time.Millisecond).WithBurst(2)
	s.wants(s.take("unblocked", slow(10), 10, 10), 10, 0)
	_, granted := s.until("a token at the new rate", func() rate.Decision { return s.take("unblocked", quick, 1, 1) },
		func(d rate.Decision) bool { return d.Allowed })
	s.wants(granted, 1, granted.Remaining)
	s.wants(s.take("faster", slow(10), 4, 4), 4, 6)
	s.wants(s.take("faster", rate.PerHour(7).WithBurst(10), 1, 1), 1, 5)
	s.wants(s.take("faster", slow(10), 1, 1), 1, 4)

	// Before the change, tokens were refilled at the old rate.
	ten := quick.WithBurst(10)
	s.take("old rate", ten, 10, 10)
	s.until("a full bucket", func() rate.Decision { return s.peek("old rate", ten) },
		func(d rate.Decision) bool { return d.ResetAfter == 0 })
	s.wants(s.take("old rate", slow(10), 10, 10), 10, 0)
}
