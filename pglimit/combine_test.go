package pglimit_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

func TestWhatArrivesMeanwhileGoesOutTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(buckets(map[string]int64{"a": 3, "b": 20}))
		c := combining(t, s, nil)
		first := c.ask(t.Context(), "a", 1)
		if s.asked(0) != "a:1" {
			t.Errorf("at once: %s", s.asked(0))
		}
		others := []*heard{c.ask(t.Context(), "b", 2), c.ask(t.Context(), "a", 1), c.ask(t.Context(), "b", 2), c.ask(t.Context(), "a", 1), c.ask(t.Context(), "a", 1)}
		if len(s.taken) != 1 {
			t.Fatalf("%d calls while one is under way", len(s.taken))
		}
		s.finish()
		if !first.Allowed || first.err != nil {
			t.Errorf("first: %+v", first)
		}
		if s.asked(1) != "b:4/2 a:3/1" {
			t.Errorf("together: %s", s.asked(1))
		}
		s.finish()
		ms := time.Millisecond
		for i, want := range []pglimit.Decision{
			{Key: "b", Allowed: true, Granted: 2, Remaining: 18, ResetAfter: 200 * ms},
			{Key: "a", Allowed: true, Granted: 1, Remaining: 1, ResetAfter: 1900 * ms},
			{Key: "b", Allowed: true, Granted: 2, Remaining: 16, ResetAfter: 400 * ms},
			{Key: "a", Allowed: true, Granted: 1, Remaining: 0, RetryAfter: 100 * ms, ResetAfter: 2000 * ms},
			{Key: "a", RetryAfter: 100 * ms, ResetAfter: 2000 * ms}, // the last to come
		} {
			want.At, want.Limiter, want.Limit = time.Unix(1000, 0), "api", c.limiter.Limit()
			if got := others[i]; got.err != nil || got.Decision != want {
				t.Errorf("%d: %+v, %v\nwant %+v", i, got.Decision, got.err, want)
			}
		}
		stats := c.limiter.Stats()
		if decided(stats) != 6 || stats.RoundTrips != 2 || stats.Requests != 3 {
			t.Errorf("%+v", stats)
		}
	})
}

// Who has its answer does not count as waiting: it may ask again at once.
func TestAsManyAsMayWaitAreNeverTurnedAway(t *testing.T) {
	t.Parallel()
	const most = 4
	limiter := newLimiter(t, &fake{}, func(c *pglimit.Config) { c.Combine.Off, c.MaxWaiting = false, most })
	var work sync.WaitGroup
	for range most {
		work.Go(func() {
			for range 2000 {
				if _, err := limiter.Allow(t.Context(), "a"); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	work.Wait()
}

func TestASlowKeyHoldsUpItsLaneOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stuck := make(chan struct{})
		s := &fake{take: func(_ context.Context, requests []rate.Request) ([]pglimit.Decision, error) {
			if requests[0].Key == "slow" {
				<-stuck
			}
			return []pglimit.Decision{{Allowed: true, Granted: 1}}, nil
		}}
		c := combining(t, s, func(c *pglimit.Config) { c.Combine.Lanes = 8 })
		slow := c.ask(t.Context(), "slow", 1)
		answered := 0
		var waiting []*heard
		for key := range 100 {
			if h := c.ask(t.Context(), fmt.Sprint("k", key), 1); h.err == nil {
				answered++
			} else {
				waiting = append(waiting, h)
			}
		}
		if slow.err == nil || answered < 60 || answered == 100 {
			t.Errorf("%d of 100 keys were answered while one in 8 lanes is stuck", answered)
		}
		s.take = grantAll
		close(stuck)
		synctest.Wait()
		for _, h := range append(waiting, slow) {
			if !h.Allowed {
				t.Errorf("%+v", h)
			}
		}
	})
}
