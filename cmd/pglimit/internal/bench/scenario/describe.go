package scenario

import (
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// Describe returns what a report says of the load.
func (s Scenario) Describe(auditDecisions int, seed uint64) result.Scenario {
	p := result.Parameters{
		Loop: "closed", Callers: s.Callers, Instances: s.Instances, Conns: s.Conns,
		Keys: s.Keys, Distribution: s.Distribution, WithRows: s.WithRows, Limit: s.Limit.String(), Cost: s.Costs[0].Tokens,
		Durability: s.Durability.String(), TimeoutSeconds: s.Timeout.Seconds(),
		WarmupSeconds: s.Warmup.Seconds(), DurationSeconds: s.Length().Seconds(),
		AuditDecisions: auditDecisions, Seed: seed,
		Combining: !s.Stages.NoCombining, Memory: !s.Stages.NoMemory, Leases: s.Stages.Leases, Breaker: !s.Stages.NoBreaker,
		AddedLatencySeconds: s.Latency.Seconds(),
	}
	if s.Distribution == Zipf {
		p.Exponent = s.Exponent
	}
	if s.Open() {
		p.Loop, p.RPS, p.Arrivals = "open", s.Phases[0].Rate, s.Arrivals
	}
	if len(s.Phases) > 1 {
		for _, phase := range s.Phases {
			p.Phases = append(p.Phases, result.Phase{Rate: phase.Rate, Seconds: phase.Length.Seconds()})
		}
	}
	if len(s.Costs) > 1 {
		sum := 0.0
		for _, c := range s.Costs {
			sum += c.Share
		}
		for _, c := range s.Costs {
			p.Costs = append(p.Costs, result.Cost{Tokens: c.Tokens, Share: c.Share / sum})
		}
	}
	return result.Scenario{
		Name: s.Name, Title: s.Title, About: s.About, StagesOf: s.StagesOf, CompareBy: s.CompareBy, AtMost: s.AtMost, Parameters: p,
	}
}
