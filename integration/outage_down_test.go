//go:build unix

package integration

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
)

// The server is stopped, and started again. Everybody is answered meanwhile, it is hardly bothered, and then everybody
// is served again. Counts agree with what callers saw, and the log has a few lines.
func serverDown(t *testing.T) {
	t.Parallel()
	const callers = 4
	server := newPatient(t, nil)
	tight := pglimit.PerSecond(48).WithBurst(20)
	type Config = pglimit.Config
	cases := []struct {
		name   string
		config Config
		keys   int
		share  int64 // of the limit, that FailLocal grants: one in so many
	}{
		{"error", Config{Timeout: time.Minute}, 200, 0},
		{"error, default timeout", Config{}, 200, 0},
		{"error, alone", Config{Timeout: time.Minute, Combine: pglimit.Combine{Off: true}}, 200, 0},
		{"error, leases", Config{Timeout: time.Minute, Leases: pglimit.Leases{On: true}}, 4, 0},
		{"open", Config{Timeout: time.Minute, OnError: pglimit.FailOpen}, 200, 0},
		{"closed", Config{Timeout: time.Minute, OnError: pglimit.FailClosed}, 200, 0},
		{"local", Config{Timeout: time.Minute, Limit: tight, OnError: pglimit.FailLocal(1)}, 1, 1},
		{"local, one of four", Config{Timeout: time.Minute, Limit: tight, OnError: pglimit.FailLocal(4)}, 1, 4},
	}
	crowds := make([]*crowd, len(cases))
	dials := make([]func() int64, len(cases))
	for i, test := range cases {
		pool, count := server.counted(t, 2)
		dials[i] = count.Load
		test.config.Name = test.name
		crowds[i] = newCrowd(t, pool, test.config, callers, test.keys)
	}
	for _, c := range crowds {
		c.served(t, 5)
	}

	server.stop(t)
	refused := time.Now()
	mark(crowds...)
	before := make([]int64, len(cases))
	for i := range cases {
		before[i] = dials[i]()
	}
	for _, c := range crowds {
		c.opens(t)
		c.answered(t, 20)
	}
	attempts := make([]int64, len(cases))
	for i := range cases {
		attempts[i] = dials[i]() - before[i]
	}
	gone := time.Now()
	server.start(t)
	mark(crowds...)
	for _, c := range crowds {
		c.served(t, 5)
	}

	for i, test := range cases {
		c := crowds[i]
		c.home(t)
		meanwhile := c.during(refused, gone)
		t.Logf("%s: %d requests while it was down, %d connections tried, failures %v; log %v",
			test.name, len(meanwhile), attempts[i], failures(meanwhile), c.log.heard())
		c.wantCounted(t)

		// One sign of life is asked for every 200 ms, over one connection, and a few calls
		// were under way. Ten callers without the breaker tried 365 connections a second.
		if limit := int64(gone.Sub(refused)/(200*time.Millisecond)) + 10; attempts[i] > limit {
			t.Errorf("%s: %d connections were tried, want %d at most", test.name, attempts[i], limit)
		}
		want(t, test.name, c, "unavailable", "breaker")

		if test.share > 0 {
			wantShare(t, test.name, meanwhile, tight, test.share)
		}
		for _, a := range meanwhile {
			cause := pglimit.CauseOf(a.err)
			fallback := test.config.OnError != nil
			switch {
			case fallback && (a.err != nil || a.decision.Source != pglimit.FromFallback && a.decision.Source != pglimit.FromMemory):
				t.Fatalf("%s: %+v while it is down", test.name, a)
			case !fallback && (!errors.Is(a.err, pglimit.ErrUnavailable) || cause != pglimit.CauseUnavailable && cause != pglimit.CauseBreaker && a.took < c.timeout) && a.decision.Source != pglimit.FromLease:
				t.Fatalf("%s: %+v while it is down", test.name, a)
			}
		}
	}
}

// wantShare of the limit of the one key, and no more, in a time in which all decisions came from the fallback. That it
// is hardly less is a test of pglimit's.
func wantShare(t *testing.T, name string, all []asked, limit pglimit.Limit, share int64) {
	t.Helper()
	var granted int64
	first, last := all[0].at, all[0].at
	for _, a := range all {
		granted += a.decision.Granted
		if a.at.Before(first) {
			first = a.at
		}
		if a.answered().After(last) {
			last = a.answered()
		}
	}
	most := (limit.Burst + int64(last.Sub(first))*limit.Tokens/int64(limit.Period)) / share
	if granted > most || granted == 0 {
		t.Errorf("%s: %d granted in %v, want some, and %d at most", name, granted, last.Sub(first), most)
	}
}

// want few lines in the log: that it opened and closed, and of each of the causes one in ten seconds.
func want(t *testing.T, name string, c *crowd, causes ...string) {
	t.Helper()
	heard := c.log.heard()
	if n := heard[opened]; n < 1 || heard[closed] < 1 {
		t.Errorf("%s: it opened and closed %d and %d times", name, n, heard[closed])
	}
	for _, cause := range causes {
		if heard["WARN no decision is known: "+cause] == 0 {
			t.Errorf("%s: nothing was logged of %s", name, cause)
		}
	}
	most := 1 + int(time.Since(c.came)/(10*time.Second))
	for line, n := range heard {
		cause, is := strings.CutPrefix(line, "WARN no decision is known: ")
		known := cause == "unavailable" || cause == "breaker" || cause == "timeout"
		if line != opened && line != closed && (!is || !known || n > most) {
			t.Errorf("%s: %q was logged %d times", name, line, n)
		}
	}
}
