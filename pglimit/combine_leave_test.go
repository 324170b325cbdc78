package pglimit_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestTheTokensOfACallerWhoLeft(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		there  int64 // tokens of "a", after the first request
		queued []int64
		inTurn int // who hears that it is allowed: of the batch, behind the one who leaves
		later  int // and of those that are queued when the answer comes
		back   int64
		passed int64
	}{
		{name: "go to the next in the batch", there: 1, inTurn: 1},
		{name: "go to the next in the queue", there: 3, inTurn: 2, queued: []int64{1, 1}, later: 1, passed: 1},
		{name: "are given back if nobody wants them", there: 3, inTurn: 2, back: 1},
		{name: "and if who is next wants more", there: 3, inTurn: 2, queued: []int64{2, 1}, back: 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				there := map[string]int64{"z": 1, "a": test.there}
				s := newServer(buckets(there))
				c := combining(t, s, nil)
				c.ask(t.Context(), "z", 1)
				ctx, leave := context.WithCancel(t.Context())
				leaver := c.ask(ctx, "a", 1)
				batch := []*heard{c.ask(t.Context(), "a", 1), c.ask(t.Context(), "a", 1)}
				s.finish()
				if s.asked(1) != "a:3/1" {
					t.Fatal(s.asked(1))
				}
				var queue []*heard
				for _, tokens := range test.queued {
					queue = append(queue, c.ask(t.Context(), "a", tokens))
				}
				leave()
				synctest.Wait()
				if !errors.Is(leaver.err, context.Canceled) {
					t.Fatalf("did not leave: %+v", leaver)
				}
				s.finish()
				for i, h := range batch {
					if h.err != nil || h.Allowed != (i < test.inTurn) {
						t.Errorf("%d of the batch: %+v", i, h)
					}
				}
				for i, h := range queue {
					if h.Allowed != (i < test.later) {
						t.Errorf("%d of the queue: %+v", i, h)
					}
				}
				var back int64
				for _, refund := range s.refunds {
					back += refund.Tokens
					if refund.Key != "a" || refund.Limiter != "api" || refund.Limit != c.limiter.Limit() || !refund.At.Equal(time.Unix(1000, 0)) {
						t.Errorf("%+v", refund)
					}
				}
				stats := c.limiter.Stats()
				if back != test.back || stats.GivenBack != test.back || stats.PassedOnTokens != test.passed || stats.LostTokens != 0 {
					t.Errorf("%d given back, %+v", back, stats)
				}
				if test.later < len(test.queued) {
					s.finish()
				}
			})
		})
	}
}
