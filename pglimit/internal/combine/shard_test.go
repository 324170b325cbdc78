package combine_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/pglimit/ratelimit/internal/bucket"
	"github.com/pglimit/ratelimit/pglimit/internal/combine"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// A call has keys of one shard, in order of arrival, and begins with who waits for longest. Callers of other shards are
// in the next ones.
func TestACallHasKeysOfOneShard(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := make(gate)
		var asked []string
		c := combine.New(2, combine.Functions{
			Rule: bucket.Rule{}, Learned: func() uint64 { return 0 },
			Send: func(ctx context.Context, requests []rate.Request) ([]rate.Decision, error) {
				asked = append(asked, text(requests))
				return g.send(ctx, requests)
			},
			Shard: func(key string) int { return int(key[0]) },
			Lane:  func(string, int) int { return 1 },
		})
		heards := []*heard{ask(t.Context(), c, "z1", 1)}
		for _, key := range []string{"b1", "a1", "b2", "a2", "c1", "b1", "z1"} {
			heards = append(heards, ask(t.Context(), c, key, 1))
		}
		for range 5 {
			g.open()
		}
		if want := []string{"z1:1", "b1:2/1 b2:1", "a1:1 a2:1", "c1:1", "z1:1"}; !slices.Equal(asked, want) {
			t.Errorf("asked %q, want %q", asked, want)
		}
		for i, h := range heards {
			if h.err != nil || !h.Allowed {
				t.Errorf("number %d: %+v", i, h)
			}
		}
	})
}
