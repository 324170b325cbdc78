package strategytest

import (
	"sync"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

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

// grants checks how many tokens each request of one call was granted.
func (s *suite) grants(requests []rate.Request, want ...int64) {
	s.Helper()
	for i, d := range s.takeAll(s.session, requests...) {
		if d.Granted != want[i] {
			s.Errorf("request %d, for key %q: granted %d, want %d", i, requests[i].Key, d.Granted, want[i])
		}
	}
}

func severalKeys(s *suite) {
	limit := s.needs(slow(1))
	s.take("b", limit, 1, 1)
	var requests []rate.Request
	for _, key := range []string{"c", "b", "é", "a", "B", "d"} {
		requests = append(requests, s.ask(key, limit, 1, 1))
	}
	s.grants(requests, 1, 0, 1, 1, 1, 1)
	if s.strategy.Check(&rate.Request{Limit: slow(9)}) == nil {
		s.grants([]rate.Request{s.ask("z", slow(9), 4, 4), s.ask("y", slow(3), 5, 1), s.ask("x", slow(2), 0, 1)}, 4, 3, 0)
		s.has("z", slow(9), 5)
		s.has("y", slow(3), 0)
		s.has("x", slow(2), 2)
	}
}

func sameKeyTwice(s *suite) {
	limit := s.needs(slow(1))
	s.grants([]rate.Request{s.ask("k", limit, 1, 1), s.ask("a", limit, 1, 1), s.ask("k", limit, 1, 1)}, 1, 1, 0)
	if s.strategy.Check(&rate.Request{Limit: slow(5)}) == nil {
		s.grants([]rate.Request{s.ask("five", slow(5), 3, 3), s.ask("five", slow(5), 3, 3), s.ask("five", slow(5), 2, 2)}, 3, 0, 2)
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
