//go:build unix

package integration

import (
	"errors"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
)

// Every process of the server stops where it is for 3 s: connections stay open, and nobody
// answers. A caller waits twice for its timeout at most, and then only one at a time does, who
// asks for a sign of life. Soon after the server goes on everybody is served again.
func serverFrozen(t *testing.T) {
	t.Parallel()
	const frozen, callers = 3 * time.Second, 4
	server := newPatient(t, nil)
	timeout := server.timeout(t, 300*time.Millisecond)
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
	for i, c := range crowds {
		c.served(t, 5*int64(cases[i].callers))
	}

	witness := server.witness(t)
	began := time.Now()
	thaw := server.freeze(t)
	<-soon(t, frozen).Done()
	for i, c := range crowds {
		until(t, cases[i].name+" is open", func() bool { return c.limiter.Stats().Open == 1 })
	}
	back := time.Now()
	thaw()
	for i, c := range crowds {
		c.served(t, 5*int64(cases[i].callers))
	}
	<-soon(t, time.Second).Done() // for who may fail after that

	served := witness.soon(back)
	for i, test := range cases {
		c := crowds[i]
		c.home(t)
		meanwhile := c.during(began, back)
		ofOne, ofAll, probes, longest := c.waits(began, back)
		first, all := c.recovery(back)
		t.Logf("%s: %d requests while it was frozen, failures %v; waits: %d of one caller, %d in all, and %d of probers, the longest %v; after its return the first is served within %v, the last fails at %v; log %v",
			test.name, len(meanwhile), failures(meanwhile), ofOne, ofAll, probes, longest, first, all, c.log.heard())
		c.wantCounted(t)
		if longest > c.timeout+250*time.Millisecond+witness.worst(back)+witness.late.worst(began) {
			t.Errorf("%s: a caller waited %v", test.name, longest)
		}
		// Two, and who was on the way when it froze. Where connecting takes so long, so does all else.
		if ofOne > 3 && witness.worst(back) < timeout/2 && witness.late.worst(began) < timeout/2 {
			t.Errorf("%s: one caller waited %d times", test.name, ofOne)
		}
		// One prober at a time, for half the timeout at least, and then a pause.
		if most := 1 + int(back.Sub(began)/(c.timeout/2+200*time.Millisecond)); probes > most {
			t.Errorf("%s: callers waited %d times for a sign of life, want %d at most", test.name, probes, most)
		}
		if first > served || all > served {
			t.Errorf("%s: the first is served after %v, and after %v one still fails", test.name, first, all)
		}
		want(t, test.name, c, witness.busy(back), "timeout", "breaker")
		for _, a := range meanwhile {
			if a.err != nil && !errors.Is(a.err, pglimit.ErrUnavailable) {
				t.Fatalf("%s: %v", test.name, a.err)
			}
		}
	}
}
