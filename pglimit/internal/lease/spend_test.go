package lease_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// A lease is spent for as long as it lasts, less a thousandth for clocks that run apart, counted from when it was asked
// for. No keeper comes in time to end it: that is as if the process had been stopped meanwhile.
func TestALeaseIsNotSpentAfterItsEnd(t *testing.T) {
	t.Parallel()
	const lasts = hold * 8 / 10
	const end = lasts - lasts/1024
	for name, test := range map[string]struct {
		there, back, at time.Duration
		spent           bool
	}{
		"the moment before":            {at: end - 1, spent: true},
		"the very instant":             {at: end},
		"within what clocks may drift": {at: lasts - lasts/2048},
		"at its end":                   {at: lasts},
		"the answer took long":         {back: lasts * 3 / 4, at: end - 1, spent: true},
		"the answer took long, at end": {back: lasts * 3 / 4, at: end},
		"the question took long":       {there: lasts * 3 / 4, at: end},
		"the process was stopped":      {at: hold - 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &lender{lends: func(ctx context.Context, r rate.LeaseRequest) (rate.Lease, error) {
				time.Sleep(test.there)
				defer time.Sleep(test.back)
				l, err := lend(ctx, r)
				l.Until = l.At.Add(lasts)
				return l, err
			}}
			leases := s.leases(t)
			claims(t, leases, nil, 1)
			later(test.at)
			if _, spent, _ := leases.Spend(request("a", 1)); spent != test.spent || len(s.asked()) != 1 {
				t.Errorf("%s: spent %t, asked %+v", name, spent, s.asked())
			}
			_ = leases.Close(t.Context())
		})
	}
}

// However many callers spend a lease at once, on as many cores: each token is spent once, and Postgres hears of each.
func TestALeaseIsNotSpentTwice(t *testing.T) {
	t.Parallel()
	s := &lender{lends: func(ctx context.Context, r rate.LeaseRequest) (rate.Lease, error) {
		l, err := lend(ctx, r)
		l.Until = l.At.Add(time.Minute) // what was spent of a lease that is over is not told any more
		return l, err
	}}
	leases := s.leases(t)
	var granted atomic.Int64
	var work sync.WaitGroup
	for range 8 {
		work.Go(func() {
			for i := range int64(20_000) {
				_, served, err := ask(t.Context(), leases, "a", 1+i%3)
				if err != nil {
					t.Error(err)
				}
				if served {
					granted.Add(1 + i%3)
				}
			}
		})
	}
	work.Wait()
	closes(t, leases)
	spent := int64(0)
	for _, r := range s.asked() {
		spent += r.Spent
	}
	if used := leases.Stats.LeasedTokens.Load() - leases.Stats.UnspentTokens.Load(); granted.Load() < 1000 || spent != granted.Load() || used != spent {
		t.Errorf("%d tokens were granted, %d spent, %d used", granted.Load(), spent, used)
	}
}
