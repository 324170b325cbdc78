package scenario

import (
	"cmp"

	"github.com/pglimit/ratelimit/pglimit"
)

// Limiter returns each instance's configuration.
func (s Scenario) Limiter(name string, subject Subject) pglimit.Config {
	on := s.StagesFor(subject.Strategy)
	return pglimit.Config{
		Name: name, Limit: subject.Limit, Timeout: cmp.Or(s.Timeout, pglimit.NoTimeout), Durability: s.Durability,
		MaxWaiting: on.MaxWaiting,
		Combine:    pglimit.Combine{Off: on.NoCombining, Lanes: on.Lanes},
		Memory:     pglimit.Memory{Off: on.NoMemory, TTL: on.DenialTTL, Keys: on.DenialKeys},
		Leases:     pglimit.Leases{On: on.Leases, TTL: on.LeaseTTL},
		Breaker:    pglimit.Breaker{Off: on.NoBreaker},
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

// TableOf is the strategy's table: the one that its method Table names, or else the one
// with the strategy's name, as in package strategies.
func TableOf(s pglimit.Strategy) string {
	if named, ok := s.(interface{ Table() string }); ok {
		return named.Table()
	}
	return "pglimit." + s.Name()
}
