package bench

import (
	"testing"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

func TestCountersOfARunAreDifferences(t *testing.T) {
	t.Parallel()
	before := reading{position{wal: 1000, xids: 10}, statistics{deadlocks: 2, dead: 50, updates: 100, hotUpdates: 40}}
	after := reading{position{wal: 3000, xids: 60}, statistics{deadlocks: 5, dead: 80, updates: 180, hotUpdates: 100}}
	run := result.Run{Decisions: 200, Allowed: 100}
	after.since(before, true, &run)
	if *run.WALBytes != 2000 || *run.WALBytesPerDecision != 10 || *run.TransactionIDsPerDecision != 0.25 ||
		*run.Deadlocks != 3 || *run.DeadTuples != 30 || *run.HOTUpdateRatio != 0.75 || !run.StatisticsComplete {
		t.Errorf("%d B, %v B and %v ids per decision, %d deadlocks, %d dead, %v HOT, complete: %v",
			*run.WALBytes, *run.WALBytesPerDecision, *run.TransactionIDsPerDecision, *run.Deadlocks, *run.DeadTuples, *run.HOTUpdateRatio, run.StatisticsComplete)
	}
	none := result.Run{}
	before.since(before, false, &none)
	if *none.WALBytesPerDecision != 0 || none.HOTUpdateRatio != nil || none.StatisticsComplete {
		t.Errorf("%+v; want nothing per decision where there was none, and no ratio of no updates", none)
	}
}

// Autovacuum removes dead tuples, and a crash resets all but the position.
func TestCountersThatFall(t *testing.T) {
	t.Parallel()
	before := reading{statistics: statistics{deadlocks: 2, dead: 50, updates: 100, hotUpdates: 40}}
	run := result.Run{Decisions: 1}
	reading{}.since(before, true, &run)
	if *run.DeadTuples != 0 || *run.Deadlocks != 0 || run.HOTUpdateRatio != nil {
		t.Errorf("%d dead tuples, %d deadlocks, HOT %v; want none", *run.DeadTuples, *run.Deadlocks, run.HOTUpdateRatio)
	}
}
