//go:build unix

package integration

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
)

// The server is stopped, and started again after 3 s. Nobody waits for long, it is hardly
// bothered, and soon after its first answer everybody is served again. Counts agree
// with what callers saw, and the log has a few lines.
func serverDown(t *testing.T) {
	t.Parallel()
	const down, callers = 3 * time.Second, 4
	server := newPatient(t, nil)
	timeout := server.timeout(t, 300*time.Millisecond)
	tight := pglimit.PerSecond(48).WithBurst(20)
	type Config = pglimit.Config
	cases := []struct {
		name   string
		config Config
		keys   int
		share  int64 // of the limit, that FailLocal grants: one in so many
	}{
		{"error", Config{Timeout: timeout}, 200, 0},
		{"error, default timeout", Config{}, 200, 0},
		{"error, alone", Config{Timeout: timeout, Combine: pglimit.Combine{Off: true}}, 200, 0},
		{"error, leases", Config{Timeout: timeout, Leases: pglimit.Leases{On: true}}, 4, 0},
		{"open", Config{Timeout: timeout, OnError: pglimit.FailOpen}, 200, 0},
		{"closed", Config{Timeout: timeout, OnError: pglimit.FailClosed}, 200, 0},
		{"local", Config{Timeout: timeout, Limit: tight, OnError: pglimit.FailLocal(1)}, 1, 1},
		{"local, one of four", Config{Timeout: timeout, Limit: tight, OnError: pglimit.FailLocal(4)}, 1, 4},
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
		c.served(t, 5*callers)
	}
	until(t, "nothing has happened, and so it is not open", func() bool { return crowds[0].limiter.Stats().Open == 0 })

	witness := server.witness(t)
	stopped := time.Now()
	server.stop(t)
	refused := time.Now()
	before := make([]int64, len(cases))
	for i := range cases {
		before[i] = dials[i]()
	}
	<-soon(t, down).Done()
	attempts := make([]int64, len(cases))
	for i := range cases {
		attempts[i] = dials[i]() - before[i]
		until(t, cases[i].name+" is open", func() bool { return crowds[i].limiter.Stats().Open == 1 })
	}
	gone := time.Now()
	server.start(t)
	back := time.Now()
	for _, c := range crowds {
		c.served(t, 5*callers)
	}
	<-soon(t, time.Second).Done() // for who may fail after that

	served := witness.soon(back)
	for i, test := range cases {
		c := crowds[i]
		c.home(t)
		meanwhile := c.during(refused, gone)
		_, _, _, longest := c.waits(stopped, gone)
		first, all := c.recovery(back)
		t.Logf("%s: %d requests while it was down, %d connections tried, failures %v; the longest wait %v; after its return the first is served within %v, the last fails at %v; log %v",
			test.name, len(meanwhile), attempts[i], failures(meanwhile), longest, first, all, c.log.heard())
		c.wantCounted(t)
		if stats := c.limiter.Stats(); stats.Open != 0 {
			t.Errorf("%s: it is open at the end", test.name)
		}

		// One sign of life is asked for every 200 ms, over one connection, and a few calls
		// were under way. Ten callers without the breaker tried 365 connections a second.
		if limit := int64(gone.Sub(refused)/(200*time.Millisecond)) + 10; attempts[i] > limit || attempts[i] == 0 {
			t.Errorf("%s: %d connections were tried, want 1 to %d", test.name, attempts[i], limit)
		}
		if longest > timeout+witness.worst(back)+witness.late.worst(stopped) {
			t.Errorf("%s: a caller waited %v", test.name, longest)
		}
		if first > served || all > served {
			t.Errorf("%s: the first is served after %v, and after %v one still fails", test.name, first, all)
		}
		want(t, test.name, c, witness.busy(back), "unavailable", "breaker")

		if test.share > 0 {
			wantShare(t, test.name, meanwhile, tight, test.share)
		}
		for _, a := range meanwhile {
			cause := pglimit.CauseOf(a.err)
			fallback := test.config.OnError != nil
			switch {
			case fallback && (a.err != nil || a.decision.Source != pglimit.FromFallback && a.decision.Source != pglimit.FromMemory):
				t.Fatalf("%s: %+v while it is down", test.name, a)
			case !fallback && (!errors.Is(a.err, pglimit.ErrUnavailable) || cause != pglimit.CauseUnavailable && cause != pglimit.CauseBreaker && a.took < timeout) && a.decision.Source != pglimit.FromLease:
				t.Fatalf("%s: %+v while it is down", test.name, a)
			}
		}
	}
}

// wantShare of the limit of the one key, no more and hardly less than a bucket that is empty at first grants those who
// asked, in a time in which all decisions came from the fallback.
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
	slices.SortFunc(all, func(a, b asked) int { return a.answered().Compare(b.answered()) })
	var least, tokens float64
	for i, a := range all {
		since := a.answered().Sub(all[max(0, i-1)].answered())
		tokens = min(float64(limit.Burst/share), tokens+since.Seconds()/limit.Period.Seconds()*float64(limit.Tokens/share))
		if tokens >= 1 {
			tokens, least = tokens-1, least+1
		}
	}
	most := (limit.Burst + int64(last.Sub(first))*limit.Tokens/int64(limit.Period)) / share
	t.Logf("%s: %d granted in %v, of %d at most, and %v at least", name, granted, last.Sub(first), most, least)
	if granted > most || float64(granted) < least*0.8 { // a token may come between two callers
		t.Errorf("%s: %d granted in %v, want %d, and hardly less than %v", name, granted, last.Sub(first), most, least)
	}
}

// want few lines in the log: that it opened and closed, and of each of the causes one in ten
// seconds. On a busy machine, where a new connection takes so long, it may open again when all
// come back at once.
func want(t *testing.T, name string, c *crowd, connecting time.Duration, causes ...string) {
	t.Helper()
	heard := c.log.heard()
	if n := heard[opened]; n < 1 || n > 3 && connecting < 50*time.Millisecond || n != heard[closed] {
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
