package audit_test

import (
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
	"github.com/pglimit/ratelimit/strategies/audit"
)

// Two grants that are too near are over, and a denial between them was due.
func TestTheDistanceBetweenGrants(t *testing.T) {
	t.Parallel()
	const second = int64(time.Second)
	rule, limit := strategies.SlidingLog{MinInterval: 2 * time.Second}.Rule(), rate.Per(4, 10*time.Second)
	for name, test := range map[string]struct {
		events       []audit.Event
		over, notDue int64
	}{
		"kept":     {[]audit.Event{grant(0, 3), deny(2*second-1, 1), grant(2*second, 1)}, 0, 0},
		"too near": {[]audit.Event{grant(0, 1), grant(2*second-1, 2)}, 2, 0},
		"not due":  {[]audit.Event{grant(0, 1), deny(2*second, 1)}, 0, 1},
	} {
		report := audit.Check(rule, limit, test.events)
		if report.Over.Tokens != test.over || report.NotDueTotal != test.notDue {
			t.Errorf("%s: %v", name, report)
		}
	}
}
