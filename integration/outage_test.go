//go:build unix

package integration

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// Postgres goes away and comes back. It is stopped, so that connections are refused; or every process of it stops where
// it is: connections stay open, and nobody answers.
func TestOutages(t *testing.T) {
	t.Parallel()
	t.Run("down", func(t *testing.T) {
		t.Parallel()
		outage(t, time.Minute, func(server *patient) (back func()) {
			server.stop(t)
			return func() { server.start(t) }
		})
	})
	t.Run("frozen", func(t *testing.T) {
		t.Parallel()
		outage(t, 2*time.Second, func(server *patient) (back func()) { return server.freeze(t) })
	})
}

// outage takes the server away. Meanwhile the circuit of every Limiter opens, whatever its driver and its stages are,
// and callers are answered: by the fallback, or else with an error that says that Postgres does not answer. When the
// server is back they are served again. What the circuit does in detail, what is logged and what is counted are tests
// of pglimit's.
func outage(t *testing.T, timeout time.Duration, away func(*patient) (back func())) {
	t.Helper()
	server := newPatient(t, nil)
	var all []*users
	var dials []*atomic.Int64
	for _, config := range []pglimit.Config{
		{Name: "usual"},
		{Name: "alone", Combine: pglimit.Combine{Off: true}},
		{Name: "leases", Leases: pglimit.Leases{On: true}},
		{Name: "open", OnError: pglimit.FailOpen},
		{Name: "local", OnError: pglimit.FailLocal(4)},
	} {
		pool, count := server.counted(t, 2)
		config.Limit, config.Timeout = plenty, timeout
		keys := 200
		if config.Leases.On {
			keys = 1
		}
		dials = append(dials, count)
		all = append(all, newUsers(t, 4, keys, newLimiter(t, pool, strategies.TokenBucket{}, config)))
	}
	pool, count := server.counted(t, 2)
	dials = append(dials, count)
	all = append(all, newUsers(t, 1, 1, newLimiter(t, pool, strategies.TokenBucket{}, pglimit.Config{Name: "one caller", Limit: plenty, Timeout: timeout})))
	for _, driver := range sqlDrivers {
		for _, alone := range []bool{false, true} {
			config := pglimit.Config{Name: driver.name, Limit: plenty, Timeout: timeout, Combine: pglimit.Combine{Off: alone}}
			all = append(all, newUsers(t, 4, 200, newSQLLimiter(t, openSQL(t, driver.open, server.URL(""), 4), config)))
		}
	}
	served := func() {
		for _, u := range all {
			u.await(t, 20)
			until(t, "it is closed", func() bool { return u.limiter.Stats().Open == 0 })
		}
	}
	served()

	before, began := make([]int64, len(dials)), time.Now()
	for i, count := range dials {
		before[i] = count.Load()
	}
	back := away(server)
	for _, u := range all {
		until(t, "it is open", func() bool { return u.limiter.Stats().Open == 1 })
		u.answers(t, 5)
	}
	for i, count := range dials {
		// One sign of life is asked for every 200 ms, over one connection, and a few calls were under way. Ten callers
		// without the breaker tried 365 connections a second.
		if tried, most := count.Load()-before[i], int64(time.Since(began)/(200*time.Millisecond))+10; tried > most {
			t.Errorf("%s: %d connections were tried, want %d at most", all[i].limiter.Config().Name, tried, most)
		}
	}
	back()
	served()
	for _, u := range all {
		u.leave()
		name, odd := u.limiter.Config().Name, u.odd.Load()
		if fallback := u.limiter.Config().OnError != nil; fallback != (u.failed.Load() == 0) {
			t.Errorf("%s: %d failed", name, u.failed.Load())
		}
		if odd != nil && !errors.Is(*odd, pglimit.ErrUnavailable) {
			t.Errorf("%s: %v", name, *odd)
		}
	}
}
