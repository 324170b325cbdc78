package strategytest

import (
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Requests of which a strategy says by Check whether it can decide the like.
func aGroup() *rate.Request { return &rate.Request{Limit: slow(1), Tokens: 1, Unit: 1, Group: 1} }
func anID() *rate.Request {
	return &rate.Request{Limit: slow(1), Tokens: 1, Unit: 1, ID: "id", IDTTL: time.Hour}
}
func aBlock() *rate.Request {
	block := blocking(1)
	return &rate.Request{Limit: slow(1), Tokens: 1, Unit: 1, Block: &block}
}
func ahead() *rate.Request {
	return &rate.Request{Limit: slow(1), Tokens: 1, Unit: 1, Ahead: time.Second}
}

// knows skips the test if the strategy does not decide such requests.
func (s *suite) knows(such func() *rate.Request) {
	s.Helper()
	if err := s.strategy.Check(such()); err != nil {
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
