package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/cleanup"
)

// The package takes 0 for its default, the command line means none.
func TestAPauseOfZeroIsNone(t *testing.T) {
	t.Parallel()
	for pause, want := range map[time.Duration]time.Duration{0: -1, time.Second: time.Second} {
		if got := (cleanupFlags{pause: pause}).config(nil); got.Pause != want {
			t.Errorf("--pause %v becomes a Pause of %v, not %v", pause, got.Pause, want)
		}
	}
}

func TestCleanupReportHasARowPerStrategyAndATotal(t *testing.T) {
	t.Parallel()
	report := newReportJSON(cleanup.Report{
		Removed: 12, Batches: 3, Duration: 1500 * time.Millisecond,
		Strategies: []cleanup.StrategyReport{
			{Strategy: "upsert", Removed: 12, Batches: 2, Duration: 7 * time.Millisecond},
			{Strategy: "token_bucket", Batches: 1, Err: errors.New("cleanup: it\nbroke")},
		},
	})
	if report.DurationMS != 1500 || report.Strategies[0].Removed != 12 || report.Strategies[1].Error != "it; broke" {
		t.Errorf("%+v", report)
	}
	want := strings.Join([]string{
		"STRATEGY      REMOVED  BATCHES  TOOK",
		"upsert        12       2        7ms",
		"token_bucket  0        1        0s",
		"total         12       3        1.5s",
		"",
	}, "\n")
	if got := report.text(); got != want {
		t.Errorf("prints\n%s, not\n%s", got, want)
	}
}
