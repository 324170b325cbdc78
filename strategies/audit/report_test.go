package audit_test

import (
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies/audit"
)

func TestAHistoryGoesOnAfterACheck(t *testing.T) {
	t.Parallel()
	var h audit.History
	h.Add(grant(second, 1))
	if report := h.Check(nil, rate.PerSecond(1)); !report.OK() {
		t.Error(report)
	}
	h.Add(grant(0, 1))
	h.Add(grant(second/2, 1))
	if report := h.Check(nil, rate.PerSecond(1)); report.Over.Tokens != 1 {
		t.Error(report)
	}
}

func TestAddingToAReportLeavesItsCopiesAlone(t *testing.T) {
	t.Parallel()
	limit := rate.Every(time.Second)
	sum := audit.Check(nil, limit, []audit.Event{deny(0, 1), deny(0, 1), deny(0, 1), deny(0, 1), deny(0, 1)})
	kept := sum
	sum.Add(audit.Check(nil, limit, []audit.Event{grant(0, 1), deny(3*second, 1)}))
	sum.Add(audit.Check(nil, limit, []audit.Event{deny(-9, 1)}))
	if kept.NotDueTotal != 5 || len(kept.NotDue) != 5 || sum.NotDueTotal != 7 || len(sum.NotDue) != 7 {
		t.Fatalf("kept %v\nsum %v", kept, sum)
	}
	for _, d := range kept.NotDue {
		if d.At.UnixNano() != start {
			t.Error(d)
		}
	}
}
