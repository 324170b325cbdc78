package resulttest_test

import (
	"bytes"
	"testing"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result/resulttest"
)

func TestFixturesAreTheSameEachTimeAndWhole(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]func() result.Report{
		"suite": resulttest.Report, "write-up": func() result.Report { return resulttest.WriteUp() }, "capacity": resulttest.Capacity,
	} {
		var once, again bytes.Buffer
		if err := of().Write(&once); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := of().Write(&again); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !bytes.Equal(once.Bytes(), again.Bytes()) {
			t.Errorf("%s differs from one call to the next", name)
		}
	}
	if groups := resulttest.Report().Groups(); len(groups) != 10 || len(groups[0].Rows) != 4 || len(groups[0].Rows[0].Runs) != 2 {
		t.Errorf("the suite is not ten scenarios with four strategies and two rounds")
	}
	for _, run := range resulttest.WriteUp().Runs {
		if len(run.Series) != 120 {
			t.Errorf("%s: %d points, want 120", run.Strategy, len(run.Series))
		}
		if collapsed := run.Strategy == "published_exclusion"; collapsed != (run.Failed() > 0) || run.Granted > 300 || !collapsed && run.Granted < 299 {
			t.Errorf("%s: %d failed, %d granted", run.Strategy, run.Failed(), run.Granted)
		}
	}
}
