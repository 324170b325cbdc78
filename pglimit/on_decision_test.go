package pglimit_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
)

// answered is what a caller, or OnDecision, is told of one request.
type answered struct {
	key      string
	decision pglimit.Decision
	err      string
}

// Whatever the stages and the way to ask: OnDecision is told what the caller is told, and as
// often as Stats counts it.
func TestOnDecisionIsToldWhatTheCallerIsTold(t *testing.T) {
	t.Parallel()
	for stages := range 16 {
		combine, memory, fallback, inTx := stages&1 > 0, stages&2 > 0, stages&4 > 0, stages&8 > 0
		t.Run(fmt.Sprintf("combine=%t memory=%t fallback=%t inTx=%t", combine, memory, fallback, inTx), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var told []answered
				limiter := newLimiter(t, &fake{take: byKey}, func(c *pglimit.Config) {
					c.Combine.Off, c.Memory.Off, c.Timeout = !combine, !memory, time.Second
					if fallback {
						c.OnError = pglimit.FailClosed
					}
					c.OnDecision = func(_ context.Context, r pglimit.Request, d pglimit.Decision, err error) {
						told = append(told, answered{r.Key, d, fmt.Sprint(err)})
					}
				})
				in, number := limiter, 0
				if inTx {
					in = limiter.On(pglimit.InTx(pglimitTx{}))
				}
				for _, key := range []string{"granted", "denied", "denied", "contended", "down", "gone", "not migrated", "slow"} {
					for _, way := range []string{"Allow", "AllowN", "Peek"} {
						_, heard, err := ways[way](t.Context(), in, key)
						if want := (answered{key, heard[0], fmt.Sprint(err)}); !slices.Equal(told, []answered{want}) {
							t.Errorf("%s: told %+v, want %+v", way, told, want)
						}
						told, number = nil, number+1
					}
					asked, heard, _ := ways["Take"](t.Context(), in, key)
					for i := range told {
						if told[i].key != key || told[i].decision != heard[i] {
							t.Errorf("told %+v, heard %+v", told[i], heard[i])
						}
					}
					if len(told) != asked {
						t.Errorf("told %d of %d", len(told), asked)
					}
					told, number = nil, number+asked
				}
				s := limiter.Stats()
				if counted := s.Allowed.Total() + s.Denied.Total() + s.Failed.Total() - s.Allowed[pglimit.FromFallback] - s.Denied[pglimit.FromFallback]; counted != int64(number) {
					t.Errorf("told %d, counted %d: %+v", number, counted, s)
				}
				if _, err := in.Allow(t.Context(), ""); err == nil || len(told) > 0 {
					t.Errorf("%v: told of an invalid request: %+v", err, told)
				}
				if err := limiter.Close(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestOnDecisionHearsOfCallersWhoCancel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var told error
		limiter := newLimiter(t, &fake{take: byKey}, func(c *pglimit.Config) {
			c.OnDecision = func(_ context.Context, _ pglimit.Request, _ pglimit.Decision, err error) { told = err }
		})
		ctx, leave := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, leave)
		if _, err := limiter.Allow(ctx, "left"); !errors.Is(told, context.Canceled) || !errors.Is(err, context.Canceled) {
			t.Error(told, err)
		}
	})
}

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
