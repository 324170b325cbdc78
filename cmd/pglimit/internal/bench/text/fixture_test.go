package text

import (
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// load of the fixture's scenarios, and what each strategy does under it.
type fixtureLoad struct {
	name, title, by string
	keys            int
	limit           string
	perSecond       map[string][2]float64 // grants, denials
	contended       float64               // for_update_nowait's share
	gain            float64               // by the stages
}

var fixtureLoads = []fixtureLoad{
	{"many-keys-granted", "many keys, all granted", result.ByGrants, 10000, "1000000/1s", map[string][2]float64{"token_bucket": {19208}, "upsert": {16280}, "for_update_nowait": {9020, 3}, "exclusion_range": {2752}}, 0, 1.3},
	{"many-keys-denied", "many keys, mostly denied", result.ByDenials, 1000, "1/1h", map[string][2]float64{"token_bucket": {400, 21500}, "upsert": {400, 22100}, "for_update_nowait": {400, 15210}, "exclusion_range": {400, 14020}}, 0, 410},
	{"hot-key-granted", "one hot key, all granted", result.ByGrants, 1, "1000000/1s", map[string][2]float64{"token_bucket": {4120}, "upsert": {3920}, "for_update_nowait": {912, 12040}, "exclusion_range": {1401}}, 0.93, 16.2},
	{"hot-key-denied", "one hot key, mostly denied", result.ByDenials, 1, "100/1s", map[string][2]float64{"token_bucket": {100, 24090}, "upsert": {100, 22950}, "for_update_nowait": {100, 14200}, "exclusion_range": {100, 9050}}, 0.12, 380},
	{"one-per-2s", "the write-up's one per 2 s", result.ByDecisions, 1, "1/2s", map[string][2]float64{"token_bucket": {0.5, 24100}, "upsert": {0.5, 23100}, "for_update_nowait": {0.5, 14800}, "exclusion_range": {0.5, 21030}}, 0.01, 395},
}

var fixtureStrategies = []string{"token_bucket", "upsert", "for_update_nowait", "exclusion_range"}

// suite is a report of the default run, in so many rounds.
func suite(rounds int) result.Report {
	r := result.Report{
		Command: "pglimit bench",
		Server:  result.Server{Version: "17.6 (Debian 17.6-1)", Source: "a throwaway server, from local binaries"},
		Client:  result.Client{Version: "v0.3.0", Go: "go1.26", OS: "linux/amd64", CPUs: 2},
	}
	for _, staged := range []bool{false, true} {
		for _, l := range fixtureLoads {
			s := result.Scenario{
				Name: l.name, Title: l.title, About: "A load.", CompareBy: l.by,
				Parameters: result.Parameters{
					Loop: "closed", Callers: 64, Instances: 1, Conns: 16, Keys: l.keys, Distribution: "uniform", Limit: l.limit, Cost: 1,
					Durability: "relaxed", WarmupSeconds: 0.2, DurationSeconds: 1, AuditDecisions: 4_000_000, Combining: staged, Memory: staged, Seed: 1,
				},
			}
			if staged {
				s.Name, s.StagesOf, s.Title = l.name+"-stages", l.name, l.title+", with stages"
			}
			r.Scenarios = append(r.Scenarios, s)
			for round := 1; round <= rounds; round++ {
				for i, strategy := range fixtureStrategies {
					r.Runs = append(r.Runs, fixtureRun(l, s, strategy, i, round))
				}
			}
		}
	}
	return r
}

func fixtureRun(l fixtureLoad, s result.Scenario, strategy string, i, round int) result.Run {
	f := 1 + 0.03*float64(round-1)
	if s.StagesOf != "" {
		f *= l.gain
	}
	grants, denials := l.perSecond[strategy][0], l.perSecond[strategy][1]
	if l.by == result.ByGrants {
		grants, denials = grants*f, denials*f
	} else {
		denials *= f
	}
	trips := 1.0
	if strategy == "for_update_nowait" {
		trips = 2
	}
	wal := float64(230 + 40*i)
	if denials > grants {
		wal = 4
	}
	us := func(rate float64) result.Latency {
		if rate == 0 {
			return result.Latency{}
		}
		p50 := 64e6 / (grants + denials)
		return result.Latency{Count: int64(rate + 1), Mean: p50 * 1.1, P50: p50, P90: 1.6 * p50, P99: 2.4 * p50, P999: 4 * p50, P9999: 6 * p50, Max: 9 * p50}
	}
	run := result.Run{
		Scenario: s.Name, Round: round, Strategy: strategy, Limit: l.limit, Cost: 1, Storage: new("logged"), Seconds: 1,
		Decisions: int64(grants + denials), DecisionsPerSecond: grants + denials, GrantsPerSecond: grants, DenialsPerSecond: denials,
		Allowed: int64(grants + 0.5), Denied: int64(denials), Granted: int64(grants + 0.5), Errors: map[string]int64{},
		Latency: us(grants + denials), GrantLatency: us(grants), DenialLatency: us(denials),
		RoundTrips: int64(trips * (grants + denials)), Deadlocks: new(int64(0)), WALBytes: new(int64(wal * (grants + denials))), WALBytesPerDecision: &wal,
		TransactionIDsPerDecision: new(0.5), DeadTuples: new(int64(1000)), HOTUpdateRatio: new(0.999), StatisticsComplete: true,
		Stages: result.Stages{RoundTripsPerDecision: 1, RoundTrips: int64(grants + denials), Requests: int64(grants + denials)},
		Audit:  &result.Audit{Verdict: result.VerdictExact, Audited: int64(grants + denials), AuditedGrants: int64(grants), AuditedDenials: int64(denials), Complete: true, JudgedDenials: int64(denials), DenialSampling: 1},
	}
	if strategy == "for_update_nowait" {
		run.Contended = int64(l.contended * (grants + denials))
	}
	if strategy == "exclusion_range" && l.limit != "1/2s" {
		run.Adapted, run.Limit = true, l.limit+" burst 1"
	}
	if s.StagesOf != "" {
		run.Stages.Combining, run.Stages.Memory, run.Stages.CallersPerRoundTrip, run.Stages.RequestsPerRoundTrip = true, true, 30, 2
		run.RoundTrips /= 100
		if l.by != result.ByGrants {
			run.Audit.Verdict, run.Audit.DenialSampling = result.VerdictSampled, 8
		}
	}
	return run
}
