//go:build unix

package integration

import (
	"errors"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
)

// Every process of the server stops where it is: connections stay open, and nobody answers. Callers are answered
// meanwhile, most of them at once: one at a time waits, who asks for a sign of life. When the server goes on everybody
// is served again.
func serverFrozen(t *testing.T) {
	t.Parallel()
	const callers, timeout = 4, 2 * time.Second
	server := newPatient(t, nil)
	off := pglimit.Combine{Off: true}
	on := pglimit.Leases{On: true}
	type Config = pglimit.Config
	cases := []struct {
		name    string
		config  Config
		callers int
		keys    int
	}{
		{"many keys", Config{Timeout: timeout}, callers, 200},
		{"one key", Config{Timeout: timeout}, callers, 1},
		{"one caller", Config{Timeout: timeout}, 1, 1},
		{"default timeout, one key", Config{}, callers, 1},
		{"alone", Config{Timeout: timeout, Combine: off}, callers, 200},
		{"alone, one caller", Config{Timeout: timeout, Combine: off}, 1, 1},
		{"leases", Config{Timeout: timeout, Leases: on}, callers, 16},
		{"leases, one key", Config{Timeout: timeout, Leases: on}, callers, 1},
		{"fallback", Config{Timeout: timeout, OnError: pglimit.FailOpen}, callers, 200},
	}
	crowds := make([]*crowd, len(cases))
	for i, test := range cases {
		pool, _ := server.counted(t, 2)
		test.config.Name = test.name
		crowds[i] = newCrowd(t, pool, test.config, test.callers, test.keys)
	}
	for _, c := range crowds {
		c.served(t, 5)
	}

	began := time.Now()
	thaw := server.freeze(t)
	mark(crowds...)
	for _, c := range crowds {
		c.opens(t)
		c.answered(t, 5)
	}
	back := time.Now()
	thaw()
	mark(crowds...)
	for _, c := range crowds {
		c.served(t, 5)
	}

	for i, test := range cases {
		c := crowds[i]
		c.home(t)
		meanwhile := c.during(began, back)
		t.Logf("%s: %d requests while it was frozen, failures %v; log %v", test.name, len(meanwhile), failures(meanwhile), c.log.heard())
		c.wantCounted(t)
		want(t, test.name, c, "breaker") // which may end the requests under way just before their time is over
		for _, a := range meanwhile {
			if a.err != nil && !errors.Is(a.err, pglimit.ErrUnavailable) {
				t.Fatalf("%s: %v", test.name, a.err)
			}
		}
	}
}
