//go:build unix

package integration

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
)

// Somebody's transaction holds the row of one key for longer than the timeout. That is no outage: the breaker does not
// open, nobody is turned away because of it, and callers of other keys have their answers. (The timeout is long because
// the breaker waits half as long for a sign of life.)
func lockedRowIsNoOutage(t *testing.T) {
	t.Parallel()
	const callers, timeout = 8, 6 * time.Second
	server := newPatient(t, nil)
	off := pglimit.Combine{Off: true}
	on := pglimit.Leases{On: true}
	type Config = pglimit.Config
	cases := []struct {
		name     string
		config   Config
		maxConns int32
		keys     int // of which one is locked: a caller asks for it every 50 ms x keys / callers
	}{
		{"that key", Config{Timeout: timeout}, 4, 1},
		{"that key and others", Config{Timeout: timeout}, 4, 40},
		{"that key, small pool", Config{Timeout: timeout}, 2, 1},
		{"that key and others, small pool", Config{Timeout: timeout}, 3, 40},
		{"that key, leases", Config{Timeout: timeout, Leases: on}, 4, 1},
		{"that key and others, leases", Config{Timeout: timeout, Leases: on}, 4, 4},
		{"that key, alone", Config{Timeout: timeout, Combine: off}, 4, 1},
		{"that key and others, alone", Config{Timeout: timeout, Combine: off}, 10, 40},
	}
	admin, _ := server.counted(t, 2)
	holder := begin(t, admin)
	crowds := make([]*crowd, len(cases))
	for i, test := range cases {
		pool, _ := server.counted(t, test.maxConns)
		test.config.Name = test.name
		warmUp(t, pool, int(test.maxConns))
		crowds[i] = newCrowd(t, pool, test.config, callers, test.keys)
	}
	for _, c := range crowds {
		c.served(t, 3)
	}

	execute(t, holder, "select from pglimit.token_bucket where key = 'key:0' for update")
	began := time.Now()
	for i, c := range crowds {
		if !cases[i].config.Leases.On { // with leases they may have what they need
			until(t, "somebody has waited for the row in vain", func() bool { return c.limiter.Stats().Failed.Total() > 0 })
		}
	}
	ended := time.Now()
	must(t, holder.Rollback(t.Context()))
	mark(crowds...)
	for _, c := range crowds {
		c.served(t, 3)
	}
	for i, test := range cases {
		c := crowds[i]
		c.home(t)
		var locked, others []asked
		for caller := range c.callers {
			for n, a := range c.callers[caller] {
				switch {
				case a.at.Before(began) || a.answered().After(ended):
				case (caller+n*callers)%test.keys == 0:
					locked = append(locked, a)
				default:
					others = append(others, a)
				}
			}
		}
		t.Logf("%s: of %d requests for the locked key %v failed, of %d for others %v; log %v",
			test.name, len(locked), failures(locked), len(others), failures(others), c.log.heard())
		c.wantCounted(t)
		if c.log.heard()[opened] > 0 || c.limiter.Stats().Failed[pglimit.CauseBreaker] > 0 {
			t.Errorf("%s: it has opened: %v, %+v", test.name, c.log.heard(), c.limiter.Stats())
		}
		if n := failures(others).Total(); n > 0 {
			t.Errorf("%s: %d of %d requests for other keys failed", test.name, n, len(others))
		}
	}
}

// Thousands of callers leave after a millisecond, while a row is locked. They find nothing
// out about the server, and so do not open the breaker.
//
// Not parallel: each takes a connection with it, and to connect is a lot of work.
func callersWhoLeaveAreNoOutage(t *testing.T) {
	server := newPatient(t, nil)
	for _, alone := range []bool{false, true} {
		t.Run("alone "+strconv.FormatBool(alone), func(t *testing.T) {
			pool, _ := server.counted(t, 10)
			log := &listener{}
			config := pglimit.Config{Name: t.Name(), Limit: plenty, Timeout: time.Minute, Combine: pglimit.Combine{Off: alone}}
			limiter := newListened(t, pool, config, log)
			must(t, second(limiter.Allow(t.Context(), "key:0")))
			holder := begin(t, pool)
			execute(t, holder, "select from pglimit.token_bucket where limiter = $1 for update", config.Name)
			const callers, each = 16, 100
			var work sync.WaitGroup
			var left atomic.Int64
			for i := range callers {
				work.Go(func() {
					for n := range each {
						ctx, cancel := context.WithCancel(t.Context())
						timer := time.AfterFunc(time.Millisecond, cancel)
						key := "key:" + strconv.Itoa(n%2*i)
						if _, err := limiter.Allow(ctx, key); err != nil {
							left.Add(1)
							if !errors.Is(err, context.Canceled) {
								t.Errorf("%s: %v", key, err)
								cancel()
								return
							}
						}
						timer.Stop()
						cancel()
					}
				})
			}
			work.Wait()
			must(t, holder.Rollback(t.Context()))
			must(t, second(limiter.Allow(t.Context(), "key:0")))
			must(t, limiter.Close(t.Context()))
			stats := limiter.Stats()
			t.Logf("%d left; %+v; log %v", left.Load(), stats, log.heard())
			if left.Load() < callers*each/4 || stats.Canceled != left.Load() || stats.Failed.Total() > 0 || len(log.heard()) > 0 {
				t.Errorf("%d left; %+v; log %v", left.Load(), stats, log.heard())
			}
		})
	}
}
