package pglimit_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
)

// A waiter who gives up leaves the last place of this process's line: those behind move up.
func TestWhoGivesUpLeavesTheLastPlace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newReserving()
		limiter := waiting(t, s, nil)
		var waiters []*waiter
		for range 6 {
			waiters = append(waiters, waitN(t, limiter, "k", 1, time.Hour))
		}
		waiters[1].leave()
		waiters[3].leave()
		later(time.Second)
		for i, want := range []time.Duration{0, -1, 100 * ms, -1, 200 * ms, 300 * ms} {
			switch w := waiters[i]; {
			case want < 0 && (!errors.Is(w.err, context.Canceled) || w.took > 0):
				t.Errorf("%d: %+v", i, w)
			case want >= 0 && (w.err != nil || !near(w.took, want) || w.decision.Delay != want):
				t.Errorf("%d: want %v: %+v", i, want, w)
			}
		}
		if stats := limiter.Stats(); stats.GivenBack != 2 || stats.LostTokens != 0 {
			t.Errorf("%+v", stats)
		}
		if full := time.Unix(0, s.of("k").Full); time.Since(full) != 600*ms { // four tokens were taken, which 400 ms paid for
			t.Errorf("full since %v", time.Since(full))
		}
	})
}

// While places are given back, nobody reserves behind them: who comes takes one of them, or asks when
// that is done.
func TestWhoComesTakesAnEmptyPlace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newReserving()
		limiter := waiting(t, s, nil)
		var waiters []*waiter
		for range 4 {
			waiters = append(waiters, waitN(t, limiter, "k", 1, time.Hour))
		}
		s.latency = 10 * ms
		asking := waitN(t, limiter, "k", 1, time.Hour) // so nothing can be given back yet
		waiters[1].leave()
		waiters[2].leave() // the places at 200 and 300 ms are empty
		synctest.Wait()
		second := waitN(t, limiter, "k", 1, time.Hour)
		impatient := waitN(t, limiter, "k", 1, 250*ms) // 300 ms is too late for it
		if stats := limiter.Stats(); stats.RoundTrips != 5 || stats.PassedOnTokens != 1 || waiters[1].over.Load() == waiters[2].over.Load() {
			t.Errorf("nobody else asks yet, and one place is given away, whose caller need not wait: %+v, %+v, %+v", stats, waiters[1], waiters[2])
		}
		later(time.Second)
		// Who was asking has the empty place that was left, and its own was given back; then the
		// impatient one asked.
		for i, test := range []struct {
			w    *waiter
			want time.Duration
		}{{waiters[3], 100 * ms}, {second, 200 * ms}, {asking, 300 * ms}} {
			if w := test.w; w.err != nil || !near(w.took, test.want) {
				t.Errorf("%d: want %v: %+v", i, test.want, w)
			}
		}
		if !errors.Is(impatient.err, pglimit.ErrWaitTooLong) {
			t.Errorf("%+v", impatient)
		}
		if stats := limiter.Stats(); stats.PassedOnTokens != 1 || stats.GivenBack != 1 || stats.LostTokens != 0 {
			t.Errorf("%+v", stats)
		}
		if full := time.Unix(0, s.of("k").Full); time.Since(full) != 600*ms { // four tokens were used, which 400 ms paid for
			t.Errorf("full since %v", time.Since(full))
		}
	})
}

// A hook that panics in a caller of Wait, whom somebody recovers, leaves nothing reserved.
func TestAHookThatPanicsLeavesTheLine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newReserving()
		bad := false
		limiter := waiting(t, s, func(c *pglimit.Config) {
			c.OnDecision = func(context.Context, pglimit.Request, pglimit.Decision, error) {
				if bad {
					panic("a bug of the user's")
				}
			}
		})
		waitN(t, limiter, "k", 1, time.Hour)
		bad = true
		func() {
			defer func() { _ = recover() }()
			_, _ = limiter.Do(t.Context(), pglimit.Request{Key: "k", Tokens: 1, MaxWait: time.Hour})
		}()
		synctest.Wait()
		if stats := limiter.Stats(); stats.Asleep != 0 || stats.GivenBack != 1 {
			t.Errorf("%+v", stats)
		}
	})
}

// Many who give up share round trips, and every place is given back, the last one first.
func TestManyWhoGiveUpShareARoundTrip(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newReserving()
		limiter := waiting(t, s, nil)
		var waiters []*waiter
		for range 50 {
			waiters = append(waiters, waitN(t, limiter, "k", 1, time.Hour))
		}
		s.latency = ms
		for _, w := range waiters[10:] {
			w.leave()
		}
		later(10 * ms)
		if owed := s.owes("k", limiter.Limit()); owed != 9900 || len(s.refunds) > 2 {
			t.Errorf("%d thousandths of a token are owed after %d refunds, want 9,900", owed, len(s.refunds))
		}
		s.down = errDown
		waiters[9].leave()
		later(time.Second)
		if stats := limiter.Stats(); stats.GivenBack != 40 || stats.LostTokens != 1 {
			t.Errorf("%+v", stats)
		}
		later(time.Minute)
	})
}

// shutDoor has 39 callers wait for "k", while the place of one who gave up is given back.
func shutDoor(t *testing.T, s *reserving, limiter *pglimit.Limiter) (waiters []*waiter) {
	for range 40 {
		waiters = append(waiters, waitN(t, limiter, "k", 1, time.Hour))
	}
	s.latency = 100 * ms
	waiters[39].leave()
	later(10 * ms)
	return waiters[:39]
}

// Who waits at the door has the next place that becomes empty, also while others are given back: callers
// who give up one after another do not keep it shut.
func TestWhoWaitsAtTheDoorHasTheNextPlace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newReserving()
		limiter := waiting(t, s, func(c *pglimit.Config) { c.Timeout = time.Second })
		waiters := shutDoor(t, s, limiter)
		came := waitN(t, limiter, "k", 1, time.Hour)
		for i := range 30 {
			waiters[38-i].leave()
			later(50 * ms)
		}
		later(5 * time.Second)
		if came.err != nil || !came.over.Load() {
			t.Errorf("%+v", came)
		}
		if stats := limiter.Stats(); stats.PassedOnTokens != 1 || stats.LostTokens != 0 || stats.Waiting != 0 {
			t.Errorf("%+v", stats)
		}
	})
}

// Nor do they if the places are not for those at the door: for another number of tokens, or due too late.
func TestNobodyWaitsAtTheDoorForLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newReserving()
		limiter := waiting(t, s, func(c *pglimit.Config) { c.Limit, c.Timeout = c.Limit.WithBurst(2), pglimit.NoTimeout })
		waiters := shutDoor(t, s, limiter)
		two := waitN(t, limiter, "k", 2, time.Hour)
		var short *waiter
		for i := range 20 {
			waiters[38-i].leave()
			later(50 * ms)
			if i == 1 {
				short = waitN(t, limiter, "k", 1, 500*ms)
			}
		}
		if !errors.Is(short.err, pglimit.ErrWaitTooLong) {
			t.Errorf("%+v", short)
		}
		later(5 * time.Second)
		if two.err != nil || !two.over.Load() {
			t.Errorf("%+v", two)
		}
		if stats := limiter.Stats(); stats.LostTokens != 0 || stats.Waiting != 0 {
			t.Errorf("%+v", stats)
		}
	})
}
