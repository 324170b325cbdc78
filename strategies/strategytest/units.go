package strategytest

import (
	"context"
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
func (s *suite) knows(such func() *rate.Request) units {
	s.Helper()
	if err := s.strategy.Check(such()); err != nil {
		s.Skipf("not for %s: %v", s.strategy.Name(), err)
	}
	return units{s.strategy}
}

// units is a strategy that is asked for what stands or falls together.
type units struct{ rate.Strategy }

// TakeGroups is Take for groups of requests.
func (u units) TakeGroups(ctx context.Context, session rate.Session, groups [][]rate.Request) ([][]rate.Decision, error) {
	var requests []rate.Request
	for i, group := range groups {
		for _, r := range group {
			r.Group = i + 1
			requests = append(requests, r)
		}
	}
	all, err := u.Take(ctx, session, requests)
	if err != nil {
		return nil, err
	}
	decisions := make([][]rate.Decision, len(groups))
	for i, group := range groups {
		n := min(len(group), len(all))
		decisions[i], all = all[:n], all[n:]
	}
	return decisions, nil
}

// TakeOnce is Take for a request with an ID.
func (u units) TakeOnce(ctx context.Context, session rate.Session, r rate.Request, ttl time.Duration) (rate.Decision, error) {
	r.IDTTL = ttl
	return u.one(ctx, session, r)
}

// TakeOrBlock is Take for a request with a Block.
func (u units) TakeOrBlock(ctx context.Context, session rate.Session, r rate.Request, block rate.Block) (rate.Decision, error) {
	r.Block = &block
	return u.one(ctx, session, r)
}

func (u units) one(ctx context.Context, session rate.Session, r rate.Request) (rate.Decision, error) {
	decisions, err := u.Take(ctx, session, []rate.Request{r})
	if err != nil {
		return rate.Decision{}, err
	}
	return decisions[0], nil
}
