package bench

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/pglimit/ratelimit/pglimit"
)

// Stages that were on between the limiters of a run and its strategy, and what they did
// while it was measured, in all instances together.
type Stages struct {
	Combining, Memory, Leases bool
	pglimit.Stats
}

// limiter returns each instance's configuration.
func (c Config) limiter(name string, p plan) pglimit.Config {
	config := pglimit.Config{
		Name: name, Limit: p.limit, Timeout: cmp.Or(c.Timeout, pglimit.NoTimeout), Durability: c.Durability,
		MaxWaiting: c.MaxWaiting,
		Combine:    pglimit.Combine{Off: c.NoCombining, Lanes: c.Lanes},
		Memory:     pglimit.Memory{Off: c.NoMemory, TTL: c.DenialTTL, Keys: c.DenialKeys},
		Leases:     pglimit.Leases{On: c.Leases && canLease(p.strategy), TTL: c.LeaseTTL},
	}
	if asPublished(p.strategy) {
		config.Combine.Off, config.Memory.Off, config.Leases.On = true, true, false
	}
	return config
}

// stages of the plan's limiters, which have done nothing yet.
func (c Config) stages(p plan) Stages {
	config := c.limiter("", p)
	return Stages{Combining: !config.Combine.Off, Memory: !config.Memory.Off, Leases: config.Leases.On}
}

func canLease(s pglimit.Strategy) bool {
	_, able := s.(pglimit.Leaser)
	return able
}

// asPublished: s is one of the write-up's statements, measured by themselves.
func asPublished(s pglimit.Strategy) bool {
	_, named := s.(interface{ Table() string })
	return named
}

// validateStages asks pglimit, which knows the bounds.
func (c Config) validateStages() error {
	err := c.limiter("bench", plan{strategy: anything{}, limit: c.Limit}).Validate(anything{})
	var config *pglimit.ConfigError
	if !errors.As(err, &config) {
		return err
	}
	flag, ours := map[string]string{
		"Combine.Lanes": "--lanes", "MaxWaiting": "--max-waiting", "Memory.TTL": "--denial-ttl", "Memory.Keys": "--denial-keys", "Leases.TTL": "--lease-ttl",
	}[config.Field]
	if !ours {
		return err
	}
	return fmt.Errorf("%s %s", flag, strings.ReplaceAll(config.Err.Error(), "Memory.Off", "--no-memory"))
}

// anything is a strategy that accepts every configuration, and can do nothing else.
type anything struct{ pglimit.Leaser }

func (anything) Name() string { return "anything" }

func (anything) Check(pglimit.Limit) error { return nil }

// readStages sums up what the limiters of all instances did so far.
func readStages(instances []instance) (sum pglimit.Stats) {
	for _, in := range instances {
		sum = sum.Plus(in.limiter.Stats())
	}
	return sum
}

// since is what the stages did between two readings.
func (s Stages) since(before, after pglimit.Stats) Stages {
	s.Stats = after.Since(before)
	return s
}

// The effect of each stage; 0 where there is nothing to divide by.

func (s Stages) decisions() int64 { return s.Allowed.Total() + s.Denied.Total() }

// decided is how many decisions Postgres made.
func (s Stages) decided() int64 {
	return s.Allowed[pglimit.FromDatabase] + s.Denied[pglimit.FromDatabase]
}

// TripsPerDecision counts trips for leases too. It is 1 without any stage.
func (s Stages) TripsPerDecision() float64 { return ratio(s.RoundTrips+s.LeaseTrips, s.decisions()) }

// RememberedShare is the share of decisions from the memory of denials.
func (s Stages) RememberedShare() float64 { return ratio(s.Denied[pglimit.FromMemory], s.decisions()) }

// LeasedShare is the share of decisions from a lease.
func (s Stages) LeasedShare() float64 { return ratio(s.Allowed[pglimit.FromLease], s.decisions()) }

// CallersPerTrip is how many callers one call of the strategy answered.
func (s Stages) CallersPerTrip() float64 { return ratio(s.decided(), s.RoundTrips) }

// RequestsPerTrip is how many different requests of theirs it sent.
func (s Stages) RequestsPerTrip() float64 { return ratio(s.Requests, s.RoundTrips) }

func ratio(n, of int64) float64 {
	if of == 0 {
		return 0
	}
	return float64(n) / float64(of)
}
