package pglimit_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
)

// A refund outlives the context of the call it belongs to, which was given up, and does not
// hang for longer than a second; its lane goes on.
func TestARefundOutlivesItsCallAndDoesNotHang(t *testing.T) {
	t.Parallel()
	for _, hangs := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var start time.Time
			var begun, goesOn time.Duration // when the refund was sent, and the next call
			var atFirst, inTheEnd error
			s := &fake{}
			s.take = func(ctx context.Context, requests []pglimit.Request) ([]pglimit.Decision, error) {
				switch requests[0].Key {
				case "z":
					time.Sleep(time.Second)
					start = time.Now()
				case "a":
					<-ctx.Done() // it is given up, and the answer comes all the same
				default:
					goesOn = time.Since(start)
				}
				return grantAll(ctx, requests)
			}
			s.giveBack = func(ctx context.Context) error {
				begun, atFirst = time.Since(start), ctx.Err()
				if hangs {
					<-ctx.Done()
				}
				inTheEnd = ctx.Err()
				return inTheEnd
			}
			c := combining(t, s, nil)
			c.ask(t.Context(), "z", 1)
			ctx, leave := context.WithCancel(t.Context())
			c.ask(ctx, "a", 3)
			later(time.Second)
			next := c.ask(t.Context(), "b", 1)
			leave()
			later(3 * time.Second)
			if begun != time.Second || atFirst != nil || next.err != nil {
				t.Errorf("given back after %v, %v; next %+v", begun, atFirst, next)
			}
			stats := c.limiter.Stats()
			if hangs && (goesOn != 2*time.Second || !errors.Is(inTheEnd, context.DeadlineExceeded) || stats.LostTokens != 3 || stats.GivenBack != 0) {
				t.Errorf("a refund that hangs: the lane goes on after %v, %v, %+v", goesOn, inTheEnd, stats)
			}
			if !hangs && (goesOn != time.Second || inTheEnd != nil || stats.LostTokens != 0 || stats.GivenBack != 3) {
				t.Errorf("the lane goes on after %v, %v, %+v", goesOn, inTheEnd, stats)
			}
		})
	}
}

// What is given back can be had at once: the memory of the denial ends, also where nobody
// knows whether it was given back.
func TestARefundEndsTheMemoryOfADenial(t *testing.T) {
	t.Parallel()
	for _, err := range []error{nil, errDown} {
		synctest.Test(t, func(t *testing.T) {
			there := map[string]int64{"a": 2}
			s := newServer(buckets(there))
			s.giveBack = func(context.Context) error {
				there["a"] += 2
				return err
			}
			c := combining(t, s, func(c *pglimit.Config) { c.Memory.Off = false })
			c.ask(t.Context(), "z", 1)
			ctx, leave := context.WithCancel(t.Context())
			c.ask(ctx, "a", 2) // the last two, which leaves none: that is remembered
			s.finish()
			leave()
			synctest.Wait()
			s.finish()
			h := c.ask(t.Context(), "a", 2)
			if len(s.taken) != 3 {
				t.Fatalf("answered from the memory: %+v", h)
			}
			s.finish()
			if h.err != nil || !h.Allowed {
				t.Errorf("%+v", h)
			}
		})
	}
}
