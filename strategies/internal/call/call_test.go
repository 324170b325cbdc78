package call

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

func TestLockOrderIsOneForAllCalls(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		requests := rapid.SliceOf(rapid.Custom(func(t *rapid.T) rate.Request {
			return rate.Request{Key: rapid.StringN(0, 3, 6).Draw(t, "key"), Limiter: rapid.StringN(0, 2, 4).Draw(t, "limiter")}
		})).Draw(t, "requests")
		order := Order(requests)
		seen := make(map[int]bool)
		for place, i := range order {
			seen[i] = true
			if place == 0 {
				continue
			}
			before, after := requests[order[place-1]], requests[i]
			same := before.Key == after.Key && before.Limiter == after.Limiter
			if before.Key > after.Key || before.Key == after.Key && before.Limiter > after.Limiter || same && order[place-1] > i {
				t.Fatalf("%v before %v", before, after)
			}
		}
		if len(seen) != len(requests) {
			t.Fatalf("%d of %d requests", len(seen), len(requests))
		}
	})
}
