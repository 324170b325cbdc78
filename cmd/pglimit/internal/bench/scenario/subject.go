package scenario

import (
	"fmt"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Subject is one strategy with the limit and the costs that it runs under.
type Subject struct {
	Strategy pglimit.Strategy
	Limit    pglimit.Limit
	Costs    []Cost
}

// Subject of a strategy. If it refuses the limit, it gets requests of one token and a burst
// of 1, with as many requests as the others: cost n under 1000/1s becomes cost 1 under
// 1000 per n seconds.
func (s Scenario) Subject(strategy pglimit.Strategy) (Subject, error) {
	refused := strategy.Check(&rate.Request{Limit: s.Limit})
	if refused == nil {
		return Subject{strategy, s.Limit, s.Costs}, nil
	}
	cost := s.Costs[0].Tokens
	single := s.Limit.WithBurst(1)
	single.Period *= time.Duration(cost)
	switch {
	case len(s.Costs) > 1:
		refused = fmt.Errorf("%w; and requests that differ in cost cannot be made requests of one token: leave it out of --strategies", refused)
	case single.Period/time.Duration(cost) == s.Limit.Period && single.Validate() == nil && strategy.Check(&rate.Request{Limit: single}) == nil:
		return Subject{strategy, single, []Cost{{1, 1}}}, nil
	}
	return Subject{}, fmt.Errorf("%s cannot run under %v: %w", strategy.Name(), s.Limit, refused)
}
