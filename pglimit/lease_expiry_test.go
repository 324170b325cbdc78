package pglimit_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
)

// lender is a strategy that grants everything, and lends 1,000 tokens at a time.
type lender struct {
	fake
	there, back, lasts time.Duration
	calls, lent, spent atomic.Int64
}

func (s *lender) Lease(_ context.Context, _ pglimit.Session, r pglimit.LeaseRequest) (pglimit.Lease, error) {
	s.calls.Add(1)
	s.spent.Add(r.Spent)
	time.Sleep(s.there)
	defer time.Sleep(s.back)
	lease := pglimit.Lease{At: time.Now(), Until: time.Now().Add(s.lasts)}
	lease.Tokens = r.Tokens
	s.lent.Add(r.Tokens)
	return lease, nil
}

// makeBusy makes the key busy: the fifth request asks for a lease.
func makeBusy(t *testing.T, limiter *pglimit.Limiter) {
	t.Helper()
	for range 5 {
		go func() { _, _ = limiter.Allow(t.Context(), "a") }()
	}
	synctest.Wait()
}

// A lease of 80 ms is spent for as long, less a thousandth for clocks that run apart, counted
// from when it was asked for. No keeper comes in time to end it: that is as if the process
// had been stopped meanwhile.
func TestALeaseIsNotSpentAfterItsEnd(t *testing.T) {
	t.Parallel()
	const lasts = 80 * time.Millisecond
	const end = lasts - lasts/1024
	for name, test := range map[string]struct {
		there, back, at time.Duration
		spent           bool
	}{
		"the moment before":            {at: end - 1, spent: true},
		"the very instant":             {at: end},
		"within what clocks may drift": {at: lasts - lasts/2048},
		"at its end":                   {at: lasts},
		"the answer took long":         {back: 60 * time.Millisecond, at: end - 1, spent: true},
		"the answer took long, at end": {back: 60 * time.Millisecond, at: end},
		"the question took long":       {there: 60 * time.Millisecond, at: end},
		"the process was stopped":      {at: 99 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &lender{fake: fake{take: grantAll}, there: test.there, back: test.back, lasts: lasts}
				limiter := leasing(t, s, perHour(100_000))
				makeBusy(t, limiter)
				later(test.at)
				if s.calls.Load() != 1 {
					t.Fatalf("%d leases were asked for", s.calls.Load())
				}
				d, err := limiter.Allow(t.Context(), "a")
				if spent := s.calls.Load() == 1; err != nil || !d.Allowed || spent != test.spent {
					t.Errorf("spent: %t, %+v, %v", spent, d, err)
				}
			})
		})
	}
}

// However many callers spend a lease at once, on as many cores: each token is spent once,
// and Postgres hears of each.
func TestALeaseIsNotSpentTwice(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64           // of Postgres
	s := &lender{lasts: time.Minute} // what was spent of a lease that is over is not told any more
	s.take = func(ctx context.Context, requests []pglimit.Request) ([]pglimit.Decision, error) {
		for _, r := range requests {
			asked.Add(r.Tokens)
		}
		return grantAll(ctx, requests)
	}
	limiter := newLimiter(t, s, func(c *pglimit.Config) { c.Leases.On, c.Combine.Off, c.Limit = true, false, perHour(1_000_000_000) })
	var allowed atomic.Int64
	var work sync.WaitGroup
	for range 8 {
		work.Go(func() {
			for i := range int64(20_000) {
				d, err := limiter.AllowN(t.Context(), "a", 1+i%3)
				if err != nil {
					t.Error(err)
				}
				allowed.Add(d.Granted)
			}
		})
	}
	work.Wait()
	if err := limiter.Close(t.Context()); err != nil {
		t.Error(err)
	}
	stats := limiter.Stats()
	granted := allowed.Load() - asked.Load()
	if stats.Allowed[pglimit.FromLease] < 1000 || s.spent.Load() != granted || stats.LeasedTokens-stats.UnspentTokens != granted || s.lent.Load() != stats.LeasedTokens {
		t.Errorf("%d tokens were granted from leases, %d spent of %d: %+v", granted, s.spent.Load(), s.lent.Load(), stats)
	}
}
