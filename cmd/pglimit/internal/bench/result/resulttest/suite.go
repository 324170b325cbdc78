// Package resulttest makes reports for the tests of what shows them. The figures are
// invented, resemble measured ones, and are the same each time.
//
//	suite.go     the suite of "pglimit bench": ten scenarios, four strategies, two rounds
//	write_up.go  the write-up's experiment, ten minutes each
//	capacity.go  "pglimit bench capacity"
//	run.go       one run of a given shape; totals.go sums it up
package resulttest

import (
	"time"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/scenario"
	"github.com/pglimit/ratelimit/pglimit"
)

// Report is of the whole suite: many-keys-granted, many-keys-denied, hot-key-granted,
// hot-key-denied and partners, then the same with the stages (many-keys-granted-staged
// and so on), with four strategies and two rounds each.
func Report() result.Report {
	r := header("pglimit bench --report report.html")
	for _, staged := range []bool{false, true} {
		for _, load := range suite {
			s := common(load.scenario)
			if staged {
				s.StagesOf = s.Name
				s.Name += "-staged"
				s.Title += ", with the stages"
				s.Stages = scenario.Stages{Leases: true}
			}
			r.Scenarios = append(r.Scenarios, s)
			for round := 1; round <= 2; round++ {
				for _, like := range load.shapes {
					if staged {
						like = like.withStages(s.CompareBy)
					}
					r.Runs = append(r.Runs, like.run(s, round, 20))
				}
			}
		}
	}
	return r
}

func header(command string) result.Report {
	return result.Report{
		Command: command, Seed: 1, AuditDecisions: 4_000_000,
		Started: time.Date(2026, 11, 20, 9, 30, 0, 0, time.UTC),
		Server: result.Server{
			Version: "17.6 (Debian 17.6-1.pgdg12+1)",
			Source:  "a throwaway server of this machine",
			Settings: map[string]string{
				"fsync": "on", "max_connections": "100", "shared_buffers": "128MB",
				"synchronous_commit": "on", "wal_level": "replica",
			},
		},
		Client: result.Client{Version: "v0.4.0", Go: "go1.26.8", OS: "linux/amd64", CPUs: 8},
	}
}

// suite without the stages. Capacity is in capacity.go.
var suite = []struct {
	scenario result.Scenario
	shapes   []shape
}{
	{
		result.Scenario{
			Name: "many-keys-granted", Title: "many keys, all granted",
			CompareBy: scenario.ByGrants, Keys: 10_000, Limit: limit("1000/1s burst 2000"),
		},
		[]shape{
			{strategy: "token_bucket", grants: 19208, grantP50: 780, trips: 1, wal: 158},
			{strategy: "upsert", grants: 16280, grantP50: 920, trips: 1, wal: 171},
			{strategy: "for_update_nowait", grants: 9020, grantP50: 1650, trips: 2, wal: 214, contended: 0.0002},
			{strategy: "exclusion_range", grants: 2752, grantP50: 5400, trips: 1, wal: 1480},
		},
	},
	{
		result.Scenario{
			Name: "many-keys-denied", Title: "many keys, mostly denied",
			CompareBy: scenario.ByDenials, Keys: 1_000, Limit: limit("1/1s burst 5"),
		},
		[]shape{
			{strategy: "token_bucket", grants: 998, denials: 23400, grantP50: 810, denialP50: 560, trips: 1, wal: 9},
			{strategy: "upsert", grants: 997, denials: 21950, grantP50: 990, denialP50: 610, trips: 1, wal: 11},
			{strategy: "for_update_nowait", grants: 991, denials: 14310, grantP50: 1710, denialP50: 1010, trips: 1.95, wal: 18, contended: 0.004},
			{strategy: "exclusion_range", grants: 996, denials: 17720, grantP50: 5100, denialP50: 700, trips: 1, wal: 102},
		},
	},
	{
		result.Scenario{
			Name: "hot-key-granted", Title: "one hot key, all granted",
			CompareBy: scenario.ByGrants, Keys: 1, Limit: limit("1000000/1s burst 1000000"),
		},
		[]shape{
			{strategy: "token_bucket", grants: 4105, grantP50: 3600, trips: 1, wal: 161},
			{strategy: "upsert", grants: 3890, grantP50: 3900, trips: 1, wal: 174},
			{strategy: "for_update_nowait", grants: 2210, denials: 6240, grantP50: 4100, denialP50: 640, trips: 1.6, wal: 88, contended: 0.71},
			{strategy: "exclusion_range", grants: 402, grantP50: 38000, trips: 1, wal: 1510, deadlocks: 3, failures: 0.01},
		},
	},
	{
		result.Scenario{
			Name: "hot-key-denied", Title: "one hot key, mostly denied",
			CompareBy: scenario.ByDenials, Keys: 1, Limit: limit("100/1s burst 100"),
		},
		[]shape{
			{strategy: "token_bucket", grants: 100, denials: 22800, grantP50: 2900, denialP50: 590, trips: 1, wal: 1},
			{strategy: "upsert", grants: 100, denials: 21400, grantP50: 3100, denialP50: 640, trips: 1, wal: 1},
			{strategy: "for_update_nowait", grants: 99, denials: 15100, grantP50: 3800, denialP50: 930, trips: 1.97, wal: 2, contended: 0.011},
			{strategy: "exclusion_range", grants: 98, denials: 16900, grantP50: 9800, denialP50: 720, trips: 1, wal: 9},
		},
	},
	{
		result.Scenario{
			Name: "partners", Title: "one request per 2 s and partner",
			CompareBy: scenario.ByDecisions, Keys: 200, Limit: limit("1/2s"),
		},
		[]shape{
			{strategy: "token_bucket", grants: 100, denials: 22100, grantP50: 900, denialP50: 580, trips: 1, wal: 2},
			{strategy: "upsert", grants: 100, denials: 20800, grantP50: 1010, denialP50: 630, trips: 1, wal: 2},
			{strategy: "for_update_nowait", grants: 100, denials: 14900, grantP50: 1720, denialP50: 960, trips: 1.98, wal: 3, contended: 0.006},
			{strategy: "exclusion_range", grants: 100, denials: 17100, grantP50: 4800, denialP50: 690, trips: 1, wal: 11},
		},
	},
}

// common is the load with what it has in common with the others.
func common(s result.Scenario) result.Scenario {
	s.Costs, s.Distribution, s.Arrivals = []scenario.Cost{{Tokens: 1, Share: 1}}, scenario.Uniform, scenario.Poisson
	s.Callers, s.Instances, s.Conns, s.Phases = 16, 2, 16, []scenario.Phase{{Length: 2 * time.Second}}
	s.Timeout, s.Warmup, s.Stages = 3*time.Second, 250*time.Millisecond, scenario.Stages{NoCombining: true, NoMemory: true}
	return s
}

// limit that is written so. One that is not valid is the zero value, and shows in what is printed.
func limit(text string) pglimit.Limit {
	l, _ := pglimit.ParseLimit(text)
	return l
}
