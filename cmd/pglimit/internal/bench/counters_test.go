package bench

import (
	"testing"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// The statements of a run are those that took most of the server's time in it, and not
// before it.
func TestStatementsOfARun(t *testing.T) {
	t.Parallel()
	before := statements{
		1: {Query: "take", Calls: 100, TotalMS: 1000},
		2: {Query: "not called", Calls: 50, TotalMS: 9000},
		3: {Query: "reset", Calls: 1000, TotalMS: 5000},
	}
	after := statements{
		1: {Query: "take", Calls: 300, TotalMS: 1500},
		2: {Query: "not called", Calls: 50, TotalMS: 9000},
		3: {Query: "reset", Calls: 10, TotalMS: 5},
		4: {Query: "new", Calls: 4, TotalMS: 100},
		5: {Query: "small", Calls: 10, TotalMS: 1.25},
		6: {Query: "slow", Calls: 1, TotalMS: 200},
		7: {Query: "in no time", Calls: 1, TotalMS: 0.01},
	}
	want := []result.Statement{
		{Query: "take", Calls: 200, TotalMS: 500, MeanUS: 2500},
		{Query: "slow", Calls: 1, TotalMS: 200, MeanUS: 200_000},
		{Query: "new", Calls: 4, TotalMS: 100, MeanUS: 25_000},
	}
	got := after.since(before)
	if len(got) != len(want) {
		t.Fatalf("%+v, want three", got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("statement %d is %+v, want %+v", i, got[i], want[i])
		}
	}
	if few := (statements{5: after[5], 7: after[7]}).since(statements{}); len(few) != 1 || few[0].Query != "small" {
		t.Errorf("%+v, want the small one", few)
	}
	if none := before.since(before); len(none) != 0 {
		t.Errorf("%+v where nothing was called", none)
	}
	if none := statements(nil).since(before); len(none) != 0 { // the server was not to be asked
		t.Errorf("%+v of nothing", none)
	}
}

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
