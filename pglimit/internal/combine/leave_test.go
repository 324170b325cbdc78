package combine_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
)

// The grant of a caller who has left is not divided among two others where two grants must have a distance, or be paid
// for one by one: they wait for their own.
func TestAGrantIsNotDividedWhereGrantsHaveADistance(t *testing.T) {
	t.Parallel()
	for _, rule := range []rate.Rule{strategies.SlidingLog{MinInterval: time.Second}.Rule(), strategies.WarmUp{}.Rule()} {
		synctest.Test(t, func(t *testing.T) { isNotDivided(t, rule) })
	}
}

func isNotDivided(t *testing.T, rule rate.Rule) {
	t.Helper()
	proceed := make(chan struct{})
	calls := &calls{rule: rule}
	calls.send = func(_ context.Context, requests []rate.Request) ([]rate.Decision, error) {
		<-proceed
		decisions := make([]rate.Decision, len(requests))
		decisions[0] = rate.Decision{Allowed: true, Granted: requests[0].Unit, Limit: limit}
		return decisions, nil
	}
	c := calls.combiner(1)
	defer func() { _ = c.Close(context.WithoutCancel(t.Context())) }()
	ctx, leave := context.WithCancel(t.Context())
	ask := func(ctx context.Context, tokens int64) *heard {
		h := new(heard)
		go func() { h.Decision, h.err = decide(ctx, c, request("a", tokens)) }()
		synctest.Wait()
		return h
	}
	ask(t.Context(), 1)
	ask(ctx, 3) // leaves
	others := []*heard{ask(t.Context(), 1), ask(t.Context(), 1)}
	proceed <- struct{}{}
	synctest.Wait()
	leave()
	synctest.Wait()
	queued := []*heard{ask(t.Context(), 1), ask(t.Context(), 1)}
	proceed <- struct{}{}
	synctest.Wait()
	for _, h := range append(others, queued...) {
		if h.err != nil || h.Allowed {
			t.Errorf("%+v", h)
		}
	}
	if len(calls.refunds) != 1 || calls.refunds[0].Tokens != 3 {
		t.Errorf("given back: %+v", calls.refunds)
	}
	proceed <- struct{}{} // of those that were queued, one is granted
	synctest.Wait()
	if !queued[0].Allowed || queued[1].Allowed {
		t.Errorf("%+v, %+v", queued[0], queued[1])
	}
}

// By a rule whose tokens do not come back evenly, each request stays as it is, and few go out together: each is a round
// trip behind the locks of those before it.
func TestRequestsStayApart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		proceed, sizes := make(chan struct{}), []int(nil)
		calls := &calls{rule: strategies.WarmUp{}.Rule()}
		calls.send = func(_ context.Context, requests []rate.Request) ([]rate.Decision, error) {
			<-proceed
			sizes = append(sizes, len(requests))
			for _, r := range requests {
				if r.Tokens != 1 {
					t.Errorf("%+v", r)
				}
			}
			return make([]rate.Decision, len(requests)), nil
		}
		c := calls.combiner(1)
		defer func() { _ = c.Close(context.WithoutCancel(t.Context())) }()
		for range 71 {
			go func() { _, _ = decide(t.Context(), c, request("a", 1)) }()
		}
		synctest.Wait()
		close(proceed)
		synctest.Wait()
		all := 0
		for _, n := range sizes {
			all += n
		}
		if all != 71 || slices.Max(sizes) != 32 {
			t.Errorf("%d went out together", sizes)
		}
	})
}
