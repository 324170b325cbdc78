package pglimit_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// What a strategy answers is handed on only if it can be an answer to what it was asked.
func TestNonsenseOfAStrategyReachesNobody(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		tokens   int64
		decision pglimit.Decision
		fault    string
	}{
		{5, pglimit.Decision{Granted: -5}, "Granted is negative"},
		{5, pglimit.Decision{Allowed: true, Granted: 10}, "Granted is more than was asked for"},
		{5, pglimit.Decision{Allowed: true, Granted: 4}, "Granted is no multiple of the unit"},
		{5, pglimit.Decision{Granted: 5}, "Allowed does not fit Granted"},
		{5, pglimit.Decision{Allowed: true}, "Allowed does not fit Granted"},
		{5, pglimit.Decision{Allowed: true, Granted: 5, Contended: true}, "Allowed does not fit Contended"},
		{5, pglimit.Decision{Remaining: -1}, "Remaining is negative"},
		{5, pglimit.Decision{RetryAfter: -1}, "RetryAfter is negative"},
		{5, pglimit.Decision{ResetAfter: -1}, "ResetAfter is negative"},
		{5, pglimit.Decision{Allowed: true, Granted: 5, Delay: -1}, "Delay is negative"},
		{5, pglimit.Decision{Allowed: true, Granted: 5, Delay: 1}, "Delay is not what was asked for"},
		{0, pglimit.Decision{Allowed: true, Granted: 1}, "Granted is more than was asked for"},

		{5, pglimit.Decision{Allowed: true, Granted: 5, Remaining: 15, ResetAfter: 1, RetryAfter: 1}, ""},
		{5, pglimit.Decision{Contended: true, RetryAfter: 1}, ""},
		{0, pglimit.Decision{Allowed: true, Remaining: 20}, ""},
		{0, pglimit.Decision{RetryAfter: 1}, ""},
	} {
		for _, alone := range []bool{false, true} {
			limiter := newLimiter(t, &fake{take: answer(test.decision)}, func(c *pglimit.Config) { c.Combine.Off = alone })
			c := callers{t, limiter}
			synctest.Test(t, func(t *testing.T) {
				h := c.ask(t.Context(), "a", test.tokens)
				switch {
				case test.fault == "":
					test.decision.Limiter, test.decision.Key, test.decision.Limit = "api", "a", limiter.Limit()
					if h.err != nil || h.Decision != test.decision {
						t.Errorf("%+v: %+v", test.decision, h)
					}
				case h.err == nil || h.Decision != (pglimit.Decision{}) || !strings.Contains(h.err.Error(), "the strategy fake made a decision that cannot be") || !strings.Contains(h.err.Error(), test.fault):
					t.Errorf("%+v: %+v", test.decision, h)
				}
			})
		}
	}
}

// The memory learns nothing from it, and the callers of the next call do not hear of it.
func TestNonsenseFailsItsOwnCallersOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		s := newServer(func(ctx context.Context, requests []rate.Request) ([]pglimit.Decision, error) {
			if calls++; calls == 1 {
				return answer(pglimit.Decision{RetryAfter: time.Hour, Remaining: -1})(ctx, requests)
			}
			return grantAll(ctx, requests)
		})
		c := combining(t, s, func(c *pglimit.Config) { c.Memory.Off = false })
		first, next := c.ask(t.Context(), "a", 1), c.ask(t.Context(), "a", 1)
		s.finish()
		s.finish()
		if first.err == nil || next.err != nil || !next.Allowed {
			t.Errorf("%+v, then %+v", first, next)
		}
	})
}

// creditor is a strategy that grants what it is asked, and lends as the test says.
type creditor struct {
	*fake
	lend func(pglimit.LeaseRequest) pglimit.Lease
}

func (c creditor) Lease(_ context.Context, _ pglimit.Session, r pglimit.LeaseRequest) (pglimit.Lease, error) {
	return c.lend(r), nil
}

// A lease that cannot be is not spent. It is nobody's error: who waits for it asks Postgres.
func TestALeaseThatCannotBeIsNotSpent(t *testing.T) {
	t.Parallel()
	for name, lease := range map[string]pglimit.Lease{
		"negative":               {Tokens: -5, Until: time.Time{}.Add(time.Second)},
		"more than the burst":    {Tokens: 21, Until: time.Time{}.Add(time.Second)},
		"much more":              {Tokens: 1_000_000, Until: time.Time{}.Add(time.Second)},
		"it ends when it begins": {Tokens: 5},
		"it ends before":         {Tokens: 5, Until: time.Time{}.Add(-time.Second)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				strategy := creditor{&fake{take: grantAll}, func(pglimit.LeaseRequest) pglimit.Lease {
					now := time.Now()
					return pglimit.Lease{Tokens: lease.Tokens, At: now, Until: now.Add(lease.Until.Sub(lease.At))}
				}}
				limiter := newLimiter(t, strategy, func(c *pglimit.Config) { c.Leases.On = true })
				for range 200 {
					d, err := limiter.Allow(t.Context(), "a")
					if err != nil || !d.Allowed || d.Source != pglimit.FromDatabase {
						t.Fatalf("%+v, %v", d, err)
					}
					if stats := limiter.Stats(); stats.LeasedTokens != 0 || stats.UnspentTokens != 0 {
						t.Fatalf("%+v", stats)
					}
					time.Sleep(5 * time.Millisecond)
				}
				if limiter.Stats().LeaseTrips == 0 {
					t.Error("no lease was asked for")
				}
				if err := limiter.Close(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A lease that nobody asked for is not spent either: a Reset would settle it, and the next one, for ever.
func TestASettlementEndsWithoutALease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		settlements := 0
		strategy := creditor{&fake{take: grantAll}, func(r pglimit.LeaseRequest) pglimit.Lease {
			if r.Tokens == 0 {
				settlements++
			}
			if settlements > 1 {
				return pglimit.Lease{At: time.Now()}
			}
			return pglimit.Lease{Tokens: 5, At: time.Now(), Until: time.Now().Add(r.TTL)}
		}}
		limiter := newLimiter(t, strategy, func(c *pglimit.Config) { c.Leases.On = true })
		makeBusy(t, limiter)
		if limiter.Stats().LeasedTokens != 5 {
			t.Fatalf("%+v", limiter.Stats())
		}
		if err := limiter.Reset(t.Context(), "a"); err != nil || settlements != 1 {
			t.Errorf("%d settlements, %v", settlements, err)
		}
		if err := limiter.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
