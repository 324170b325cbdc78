package integration

import (
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// A rule for a key beats one for a prefix, and that one for all keys; a change holds within two seconds.
func TestLimitsFromTheTable(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	execute(t, pool, "select pglimit.set_limit('api', '3/1h', note => 'default')")
	execute(t, pool, "select pglimit.set_limit('api', '5/1h', prefix => 'org:', note => 'plan')")
	execute(t, pool, "select pglimit.set_limit('api', action => 'deny', key => 'org:bad', note => 'ticket 7')")
	execute(t, pool, "select pglimit.set_limit('api', action => 'allow', key => 'org:us', note => 'ours')")
	execute(t, pool, "select pglimit.set_limit('api', '1/1h', action => 'observe', note => 'trial')")
	limits := pglimit.LimitsFrom(pool, pglimit.LimitsConfig{Every: 20 * time.Millisecond})
	limiter := newLimiter(t, pool, strategies.TokenBucket{}, pglimit.Config{Name: "api", Limit: hours.WithBurst(1000), Limits: limits})
	for key, want := range map[string]int64{"user:1": 3, "org:1": 5, "org:bad": 0, "org:us": 20} {
		var granted int64
		for range 20 {
			d, err := limiter.Allow(t.Context(), key)
			must(t, err)
			granted += d.Granted
			if d.Rule == nil {
				t.Errorf("%s: no rule: %+v", key, d)
			}
		}
		if granted != want {
			t.Errorf("%s: %d granted, want %d", key, granted, want)
		}
	}
	stats := limiter.Stats()
	if stats.ObservedDenied == 0 || stats.LimitsVersion != 5 {
		t.Errorf("%+v", stats)
	}
	execute(t, pool, "select pglimit.set_limit(null, action => 'off', note => 'outage')")
	for d := (pglimit.Decision{}); !d.Allowed; {
		var err error
		d, err = limiter.Allow(t.Context(), "org:bad")
		must(t, err)
		<-soon(t, time.Millisecond).Done()
	}
}
