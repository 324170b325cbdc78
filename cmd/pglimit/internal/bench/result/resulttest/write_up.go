package resulttest

import (
	"math"
	"time"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/scenario"
)

// WriteUp is of the write-up's experiment at full length: 600 s in an open loop, 120
// points. Without names it is of token_bucket, upsert, for_update_nowait, exclusion_range
// and published_exclusion. The last one collapses when the load rises.
func WriteUp(strategies ...string) result.Report {
	if len(strategies) == 0 {
		strategies = []string{"token_bucket", "upsert", "for_update_nowait", "exclusion_range", "published_exclusion"}
	}
	r := header("pglimit bench --scenario write-up --published --report write-up.html")
	s := common(result.Scenario{
		Name: "write-up", Title: "the write-up's experiment",
		CompareBy: scenario.ByDecisions, AtMost: 300, Keys: 1, Limit: limit("1/2s"),
	})
	s.Callers = 256
	s.Phases = []scenario.Phase{{Rate: 5, Length: 3 * time.Minute}, {Rate: 50, Length: 3 * time.Minute}, {Rate: 100, Length: 4 * time.Minute}}
	r.Scenarios = []result.Scenario{s}
	for i, strategy := range strategies {
		like := shape{strategy: strategy, trips: 1, wal: 6, contended: 0.001}
		slower := 1 + 0.25*float64(i)
		like.at = func(t float64) load { return patient(t, slower) }
		if strategy == "published_exclusion" {
			like.wal = 420
			like.at = collapsing
		}
		r.Runs = append(r.Runs, like.run(s, 1, 120))
	}
	return r
}

// arrivals per second.
func arrivals(t float64) float64 {
	switch {
	case t < 180:
		return 5
	case t < 360:
		return 50
	}
	return 100
}

// patient grants what the limit allows, and denies the others.
func patient(t, slower float64) load {
	return load{
		grants: 0.5, denials: arrivals(t) - 0.5,
		grantP50: 900 * slower, denialP50: 520 * slower,
	}
}

// collapsing is soon busy with its own deadlocks.
func collapsing(t float64) load {
	rate := arrivals(t)
	if rate < 50 {
		return load{grants: 0.5, denials: rate - 0.5, grantP50: 2400, denialP50: 1900}
	}
	late := math.Min(1, (t-180)/120)
	answered := rate * (1 - 0.85*late)
	return load{
		grants: 0.5 * (1 - 0.8*late), denials: answered, failures: rate - answered, deadlocks: 4 * late,
		grantP50: 40_000 + 1_800_000*late, denialP50: 30_000 + 1_500_000*late,
	}
}
