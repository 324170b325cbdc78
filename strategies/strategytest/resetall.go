package strategytest

import (
	"strconv"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

func resetAll(s *suite) {
	limit, strategy := s.needs(slow(1)), capable[rate.AllResetter](s)
	const keys = 50
	var requests []rate.Request
	for i := range keys {
		requests = append(requests, s.ask(strconv.Itoa(i), limit, 1, 1))
	}
	other := s.ask("1", limit, 1, 1)
	other.Limiter += "2"
	s.takeAll(s.session, append(requests, other)...)
	removed, err := strategy.ResetAll(s.Context(), s.session, s.limiter)
	if err != nil || removed != keys {
		s.Errorf("ResetAll removed %d rows of %d keys that had one grant each: %v", removed, keys, err)
	}
	for i, d := range s.takeAll(s.session, requests...) {
		if !d.Allowed {
			s.Errorf("key %d was not reset", i)
		}
	}
	s.wants(s.takeAll(s.session, other)[0], 0, 0)

	// A limiter without rows; an empty limiter name.
	if removed, err := strategy.ResetAll(s.Context(), s.session, s.limiter+"3"); removed != 0 || err != nil {
		s.Errorf("of an unknown limiter: %d, %v", removed, err)
	}
	if _, err := strategy.ResetAll(s.Context(), s.session, ""); err == nil {
		s.Error("of no limiter: no error")
	}
}

func resetAllInTransaction(s *suite) {
	limit, strategy := s.needs(slow(1)), capable[rate.AllResetter](s)
	s.wants(s.take("k", limit, 1, 1), 1, 0)
	s.joins(func(tx Tx) {
		if removed, err := strategy.ResetAll(s.Context(), tx, s.limiter); removed != 1 || err != nil {
			s.Errorf("%d, %v", removed, err)
		}
	}, func(committed bool) {
		if d := s.peek("k", limit); d.Allowed != committed {
			s.Errorf("committed %v: available %v", committed, d.Allowed)
		}
	})
}
