package combine_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

func durably(key string, tokens int64) rate.Request {
	r := request(key, tokens)
	r.Durability = rate.Durable
	return r
}

// A relaxed request and a durable one become a durable one, in either order.
func TestWhatIsCombinedIsAsDurableAsEachOfIt(t *testing.T) {
	t.Parallel()
	for _, both := range [][]rate.Request{{request("a", 1), durably("a", 1)}, {durably("a", 1), request("a", 1)}} {
		synctest.Test(t, func(t *testing.T) {
			g, sent := make(gate), []rate.Durability(nil)
			s := &calls{send: func(ctx context.Context, requests []rate.Request) ([]rate.Decision, error) {
				sent = append(sent, requests[0].Durability)
				return g.send(ctx, requests)
			}}
			c := s.combiner(1)
			ask(t.Context(), c, "z", 1)
			one, two := askFor(t.Context(), c, both[0]), askFor(t.Context(), c, both[1])
			g.open()
			g.open()
			if !one.Allowed || !two.Allowed || len(s.asked) != 2 || s.asked[1] != "a:2/1" || sent[0] != rate.Relaxed || sent[1] != rate.Durable {
				t.Errorf("%+v, %+v, asked %q, %v", one, two, s.asked, sent)
			}
		})
	}
}

// Tokens that a relaxed call granted are not durable: a caller who needs that waits for its own call, and nobody
// overtakes it. The other way they are passed on.
func TestWhatIsNotDurableIsNotPassedOnAsDurable(t *testing.T) {
	t.Parallel()
	for durable, gone := range map[bool]rate.Request{false: request("a", 2), true: durably("a", 2)} {
		synctest.Test(t, func(t *testing.T) {
			g := make(gate)
			s := &calls{send: g.send}
			c := s.combiner(1)
			ask(t.Context(), c, "z", 1)
			ctx, leave := context.WithCancel(t.Context())
			askFor(ctx, c, gone)
			g.open()
			next, behind := askFor(t.Context(), c, durably("a", 1)), ask(t.Context(), c, "a", 1)
			leave()
			synctest.Wait()
			g.open()
			passed, back := c.Stats.PassedOn.Load(), c.Stats.GivenBack.Load()
			if next.Allowed != durable || behind.Allowed != durable || (passed == 2) != durable || (back == 2) == durable {
				t.Errorf("durable %t: %+v, %+v, passed on %d, given back %d", durable, next, behind, passed, back)
			}
			if !durable {
				g.open()
			}
			if !next.Allowed || !behind.Allowed {
				t.Errorf("durable %t: %+v, %+v", durable, next, behind)
			}
		})
	}
}

// Two requests of 2^62 tokens are more than a number holds, and do not become one.
func TestTheSumOfABatchDoesNotOverflow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const huge = 1 << 62
		g := make(gate)
		s := &calls{send: g.send}
		c := s.combiner(1)
		ask(t.Context(), c, "z", 1)
		one, two := ask(t.Context(), c, "a", huge), ask(t.Context(), c, "a", huge)
		g.open()
		g.open()
		if want := fmt.Sprintf("a:%d a:%d", int64(huge), int64(huge)); s.asked[1] != want || one.Granted != huge || two.Granted != huge {
			t.Errorf("%+v, %+v, asked %q", one, two, s.asked)
		}
	})
}
