package bench

import (
	"testing"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

func TestCountersOfARunAreDifferences(t *testing.T) {
	t.Parallel()
	run := result.Run{Decisions: 200, Allowed: 100}
	countServer(&run, counted{wal: 1000, deadlocks: 2}, counted{wal: 3000, deadlocks: 5})
	if *run.WALBytes != 2000 || *run.WALBytesPerDecision != 10 || *run.Deadlocks != 3 {
		t.Errorf("%d B, %v B per decision, %d deadlocks", *run.WALBytes, *run.WALBytesPerDecision, *run.Deadlocks)
	}
	none := result.Run{}
	countServer(&none, counted{deadlocks: 2}, counted{}) // a crash resets them
	if *none.WALBytesPerDecision != 0 || *none.Deadlocks != 0 {
		t.Errorf("%v B per decision, %d deadlocks; want none", *none.WALBytesPerDecision, *none.Deadlocks)
	}
}
