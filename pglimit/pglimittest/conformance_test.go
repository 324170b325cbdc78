package pglimittest_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit/pglimittest"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies/strategytest"
)

// A clock on which some time passes from one look to the next.
func passing() func() time.Time {
	var looks atomic.Int64
	start := time.Date(2026, time.March, 29, 1, 59, 59, 0, time.UTC)
	return func() time.Time { return start.Add(time.Duration(looks.Add(1)) * 137 * time.Microsecond) }
}

func TestConformance(t *testing.T) {
	t.Parallel()
	strategytest.RunInMemory(t, func() (rate.Strategy, func() time.Time) {
		clock := passing()
		return pglimittest.MemoryOn(clock), clock
	})
}
