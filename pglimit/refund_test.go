package pglimit_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/pglimit/ratelimit/pglimit"
)

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
