package pglimit_test

import (
	"context"
	"strconv"
	"testing"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// BenchmarkCombining is the way of a request to the strategy and back, with a strategy that
// answers at once: what combining itself costs, for a lone caller and for many.
func BenchmarkCombining(b *testing.B) {
	for _, callers := range []int{1, 64, 512} {
		b.Run(strconv.Itoa(callers)+" callers", func(b *testing.B) {
			limiter, err := pglimit.New(noDB{}, forgetful{&fake{}}, config(func(c *pglimit.Config) { c.Combine.Off, c.Memory.Off = false, false }))
			if err != nil {
				b.Fatal(err)
			}
			names := make([]string, 10_000)
			for i := range names {
				names[i] = "user:" + strconv.Itoa(i)
			}
			b.ReportAllocs()
			b.SetParallelism(callers)
			ask := func(next func() bool) {
				ctx := b.Context()
				for i := 0; next(); i++ {
					if d, err := limiter.Allow(ctx, names[i*7919%len(names)]); err != nil || !d.Allowed {
						b.Error(d, err)
					}
				}
			}
			if callers == 1 {
				ask(b.Loop)
				return
			}
			b.RunParallel(func(pb *testing.PB) { ask(pb.Next) })
		})
	}
}

// forgetful is a fake that remembers nothing and grants everything.
type forgetful struct{ *fake }

func (forgetful) Take(ctx context.Context, _ pglimit.Session, requests []rate.Request) ([]pglimit.Decision, error) {
	return grantAll(ctx, requests)
}
