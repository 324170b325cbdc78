package pglimit_test

import (
	"context"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
)

// An OnDecision that allocates nothing leaves a denial from memory without an allocation.
func TestOnDecisionAllocatesNothing(t *testing.T) {
	denied := 0
	limiter := remembering(t, &fake{take: answer(pglimit.Decision{RetryAfter: time.Hour})}, func(c *pglimit.Config) {
		c.Memory.TTL = time.Hour
		c.OnDecision = func(_ context.Context, _ pglimit.Request, d pglimit.Decision, _ error) {
			if !d.Allowed {
				denied++
			}
		}
	})
	ctx := t.Context()
	_, _ = limiter.Allow(ctx, "a")
	if n := testing.AllocsPerRun(1000, func() { _, _ = limiter.Allow(ctx, "a") }); n != 0 || denied != 1002 {
		t.Errorf("%v allocations, %d denied", n, denied)
	}
}

func TestALimiterSaysWhatItIs(t *testing.T) {
	t.Parallel()
	strategy := &fake{}
	limiter := newLimiter(t, strategy, nil)
	for _, l := range []*pglimit.Limiter{limiter, limiter.On(pglimit.InTx(pglimitTx{}))} {
		if l.Config().Name != "api" || l.Strategy() != pglimit.Strategy(strategy) {
			t.Error(l.Config().Name, l.Strategy())
		}
	}
}
