package integration

import (
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// A range is as long as a token takes, or a little longer, never shorter: a seventh of a second is
// no whole number of microseconds, which is what a range is counted in.
func TestARangeIsNeverShorterThanTheInterval(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	for name, limit := range map[string]pglimit.Limit{
		"7 per second":     pglimit.PerSecond(7),
		"3 per second":     pglimit.PerSecond(3),
		"9,973 per minute": pglimit.PerMinute(9973),
		"1 per second":     pglimit.PerSecond(1), // is one to begin with
		"1 per ns":         pglimit.PerSecond(pglimit.MaxRate),
		"1 per 1,001 ns":   pglimit.Every(1001),
	} {
		d := take(t, pool, strategies.ExclusionRange{}, name, limit.WithBurst(1))
		if !d.Allowed {
			t.Fatalf("%s: the first is denied", name)
		}
		length := time.Duration(query[int64](t, pool, "select pglimit.ns_of(upper(during)) - pglimit.ns_of(lower(during)) from pglimit.exclusion_range where key = $1", name))
		if least := limit.Period; length*time.Duration(limit.Tokens) < least || length >= limit.Token()+time.Microsecond {
			t.Errorf("%s: a range of %v", name, length)
		}
		if d.RetryAfter < length {
			t.Errorf("%s: retry after %v, before the range of %v is over", name, d.RetryAfter, length)
		}
	}
}
