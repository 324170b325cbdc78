package bench

import (
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/scenario"
	"github.com/pglimit/ratelimit/pglimit"
)

// readStages sums up what the limiters of all instances did so far.
func readStages(instances []instance) (sum pglimit.Stats) {
	for _, in := range instances {
		sum = sum.Plus(in.limiter.Stats())
	}
	return sum
}

func stagesOn(s scenario.Stages) result.Stages {
	return result.Stages{Combining: !s.NoCombining, Memory: !s.NoMemory, Leases: s.Leases}
}

// withStages adds to on what the stages did, and what that came to.
func withStages(on result.Stages, did pglimit.Stats) result.Stages {
	decisions := did.Allowed.Total() + did.Denied.Total()
	decided := did.Allowed[pglimit.FromDatabase] + did.Denied[pglimit.FromDatabase]
	on.RememberedRatio = round(ratio(did.Denied[pglimit.FromMemory], decisions), 6)
	on.LeasedRatio = round(ratio(did.Allowed[pglimit.FromLease], decisions), 6)
	on.CallersPerRoundTrip = round(ratio(decided, did.RoundTrips), 3)
	on.RequestsPerRoundTrip = round(ratio(did.Requests, did.RoundTrips), 3)
	return on
}
