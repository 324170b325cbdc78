package adjust

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/pglimit/ratelimit/pglimit/internal/claims"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// All requests of a decision have one share, though it changes meanwhile.
func TestADecisionHasOneShare(t *testing.T) {
	t.Parallel()
	var s Share
	var over atomic.Bool
	var changes sync.WaitGroup
	changes.Go(func() {
		for i := int64(0); !over.Load(); i++ {
			s.percent.Store(i % Whole)
		}
	})
	requests := make([]rate.Request, 1000)
	for range 300 {
		for i := range requests {
			requests[i] = rate.Request{Limit: rate.PerSecond(1000), Tokens: 1, Unit: 1}
		}
		c := claims.New(requests...)
		s.Answer(c)
		for i := range requests {
			if c.Requests[i].Limit != c.Requests[0].Limit || c.Decisions[i].Allowed != c.Decisions[0].Allowed {
				t.Fatalf("%v and %v", c.Requests[0].Limit, c.Requests[i].Limit)
			}
		}
	}
	over.Store(true)
	changes.Wait()
}
