package scenario

import (
	"cmp"
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

// Subject of a strategy. If it refuses the limit, it gets requests of one token and a burst of 1, with as many requests
// as the others: cost n under 1000/1s becomes cost 1 under 1000 per n seconds.
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

// Limiter returns each instance's configuration.
func (s Scenario) Limiter(name string, subject Subject) pglimit.Config {
	on := s.StagesFor(subject.Strategy)
	return pglimit.Config{
		Name: name, Limit: subject.Limit, Timeout: cmp.Or(s.Timeout, pglimit.NoTimeout), Durability: s.Durability,
		Combine: pglimit.Combine{Off: on.NoCombining}, Memory: pglimit.Memory{Off: on.NoMemory},
		Leases: pglimit.Leases{On: on.Leases}, Breaker: pglimit.Breaker{Off: on.NoBreaker},
	}
}

// StagesFor a strategy: those that it cannot have are off.
func (s Scenario) StagesFor(strategy pglimit.Strategy) Stages {
	on := s.Stages
	if _, able := strategy.(pglimit.Leaser); !able {
		on.Leases = false
	}
	if AsPublished(strategy) {
		on.NoCombining, on.NoMemory, on.Leases, on.NoBreaker = true, true, false, true
	}
	return on
}

// AsPublished: s is one of the write-up's statements, measured by themselves.
func AsPublished(s pglimit.Strategy) bool {
	_, named := s.(interface{ Table() string })
	return named
}

// TableOf is the strategy's table: the one that its method Table names, or else the one with the strategy's name, as in
// package strategies.
func TableOf(s pglimit.Strategy) string {
	if named, ok := s.(interface{ Table() string }); ok {
		return named.Table()
	}
	return "pglimit." + s.Name()
}
