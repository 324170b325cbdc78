package audit_test

import (
	"fmt"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies/audit"
)

func ExampleCheck() {
	noon := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC).UnixNano()
	report := audit.Check(nil, rate.PerSecond(3), []audit.Event{
		{At: noon, Wanted: 3, Unit: 3, Granted: 3},
		{At: noon + 200_000_000, Wanted: 1, Unit: 1, Granted: 1}, // too early
		{At: noon + 900_000_000, Wanted: 1, Unit: 1},             // the token was there
	})
	fmt.Println(report)
	fmt.Println("kept:", report.OK())
	// Output:
	// 2 decisions granted 4 tokens; 1 denial
	// over: 1 token too many: 4 granted in 200ms, from 2026-05-04T12:00:00.000000Z to 2026-05-04T12:00:00.200000Z
	// not due: 1 denial, such as
	//   1 token denied at 2026-05-04T12:00:00.900000Z, 1 was there, for at least 233.333332ms
	// kept: false
}

// Each goroutine of a load test records for itself; in the end all is merged and
// checked.
func ExampleHistories() {
	limit := rate.PerMinute(1)
	noon := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

	var one, other audit.Histories
	one.Record("user:42", 1, 1, rate.Decision{Allowed: true, Granted: 1, At: noon})
	other.Record("user:42", 1, 1, rate.Decision{At: noon.Add(59 * time.Second)})
	other.Record("user:43", 1, 1, rate.Decision{Allowed: true, Granted: 1, At: noon})

	one.Merge(&other)
	fmt.Println(one.Check(nil, limit))
	// Output: 2 decisions granted 2 tokens; 1 denial: never over, no denial that was not due
}
