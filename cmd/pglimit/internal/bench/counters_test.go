package bench

import (
	"testing"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

func TestWALOfARunIsADifference(t *testing.T) {
	t.Parallel()
	run := result.Run{Decisions: 200, Allowed: 100}
	countWAL(&run, counted{wal: 1000}, counted{wal: 3000})
	if *run.WALBytesPerDecision != 10 {
		t.Errorf("%v B per decision", *run.WALBytesPerDecision)
	}
}
