package audit_test

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies/audit"
)

func TestCheckLeavesTheEventsAlone(t *testing.T) {
	t.Parallel()
	events := []audit.Event{grant(2, 1), grant(1, 1), deny(0, 1)}
	before := slices.Clone(events)
	audit.Check(rate.PerSecond(1), events)
	if !slices.Equal(events, before) {
		t.Error(events)
	}
}

func TestAHistoryGoesOnAfterACheck(t *testing.T) {
	t.Parallel()
	var h audit.History
	h.Add(grant(second, 1))
	if report := h.Check(rate.PerSecond(1)); !report.OK() {
		t.Error(report)
	}
	h.Add(grant(0, 1))
	h.Add(grant(second/2, 1))
	if report := h.Check(rate.PerSecond(1)); report.Over.Tokens != 1 {
		t.Error(report)
	}
}

func TestAddingToAReportLeavesItsCopiesAlone(t *testing.T) {
	t.Parallel()
	limit := rate.Every(time.Second)
	sum := audit.Check(limit, []audit.Event{deny(0, 1), deny(0, 1), deny(0, 1), deny(0, 1), deny(0, 1)})
	kept := sum
	sum.Add(audit.Check(limit, []audit.Event{grant(0, 1), deny(3*second, 1)}))
	sum.Add(audit.Check(limit, []audit.Event{deny(-9, 1)}))
	if kept.NotDueTotal != 5 || len(kept.NotDue) != 5 || sum.NotDueTotal != 7 || len(sum.NotDue) != 7 {
		t.Fatalf("kept %v\nsum %v", kept, sum)
	}
	for _, d := range kept.NotDue {
		if d.At.UnixNano() != start {
			t.Error(d)
		}
	}
}

func TestReportsAddUpTheSameInAnyOrder(t *testing.T) {
	t.Parallel()
	limit := rate.Every(time.Second)
	var reports [3]audit.Report
	for i, bucket := range []string{"a", "b", "c"} {
		var h audit.Histories
		h.Add(bucket, grant(0, 1))
		h.Add(bucket, grant(0, 1))
		for n := range int64(2 * audit.MaxListed) {
			h.Add(bucket, deny(5*second+n%3, 1))
		}
		reports[i] = h.Check(limit)
	}
	var up, down audit.Report
	for i := range reports {
		up.Add(reports[i])
		down.Add(reports[len(reports)-1-i])
	}
	if !reflect.DeepEqual(up, down) {
		t.Errorf("a, b, c: %v\nc, b, a: %v", up, down)
	}
	if up.NotDueTotal != 3*2*audit.MaxListed || len(up.NotDue) != audit.MaxListed || up.Over.Bucket != "a" || up.Grants != 6 {
		t.Error(up)
	}
}
