package strategytest

import (
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Requests of which a strategy says by Check whether it can decide the like.
var (
	aGroup = rate.Request{Limit: slow(1), Tokens: 1, Unit: 1, Group: 1}
	anID   = rate.Request{Limit: slow(1), Tokens: 1, Unit: 1, ID: "id", IDTTL: time.Hour}
	aBlock = rate.Request{Limit: slow(1), Tokens: 1, Unit: 1, Block: &rate.Block{After: 1, Within: 1, For: 1, Max: 1}}
	ahead  = rate.Request{Limit: slow(1), Tokens: 1, Unit: 1, Ahead: time.Second}

	aGroupAhead = rate.Request{Limit: slow(1), Tokens: 1, Unit: 1, Group: 1, Ahead: time.Second}
)

func (s *suite) can(such rate.Request) bool { return s.strategy.Check(&such) == nil }

// needs skips the test if the strategy cannot decide such requests.
func (s *suite) needs(such rate.Request) {
	s.Helper()
	if err := s.strategy.Check(&such); err != nil {
		s.Skipf("not for %s: %v", s.strategy.Name(), err)
	}
}

// grouped returns the requests of several groups as those of one call.
func grouped(groups ...[]rate.Request) (requests []rate.Request) {
	for i, group := range groups {
		for _, r := range group {
			r.Group = i + 1
			requests = append(requests, r)
		}
	}
	return requests
}

// isWhole says that a group was granted, or denied because a bucket lacks tokens.
func isWhole(group []rate.Decision) bool {
	granted, lacking := 0, 0
	for _, d := range group {
		if d.Granted > 0 {
			granted++
		} else if !d.Allowed {
			lacking++
		}
	}
	return granted == len(group) || granted == 0 && lacking > 0
}
