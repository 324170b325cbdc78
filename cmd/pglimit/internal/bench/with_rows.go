package bench

import (
	"context"
	"math/rand/v2"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/pglimit/ratelimit/pglimit"
)

const (
	touchKeys    = 1000 // in one call
	touchCallers = 4
)

// touch takes once from each key, so that each has a row before the load begins. It goes through the keys in random
// order, as they would come: an index that is built in order is half as large. The audit does not know of these grants,
// and so judges no denial.
func (s *strategyRun) touch(ctx context.Context, keys []string) error {
	keys = slices.Clone(keys)
	random := rand.New(source(s.config.Seed, streamTouch, 0)) //nolint:gosec // a load, not a secret
	random.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	limiter, cost := s.instances[0].limiter, s.subject.Costs[0].Tokens
	touching, ctx := errgroup.WithContext(ctx)
	touching.SetLimit(touchCallers)
	for some := range slices.Chunk(keys, touchKeys) {
		touching.Go(func() error {
			requests := make([]pglimit.Request, len(some))
			for i, key := range some {
				requests[i] = pglimit.Request{Key: key, Tokens: cost}
			}
			_, err := limiter.DoEach(ctx, requests...)
			return err
		})
	}
	return touching.Wait()
}
