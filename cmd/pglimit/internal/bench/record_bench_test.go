package bench

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/scenario"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// BenchmarkRecord is what the harness costs per decision: key, clock, counters,
// histogram and history. It is the difference between a caller's loop and the limiter
// alone, which answers a denial from memory, the fastest thing it does.
func BenchmarkRecord(b *testing.B) {
	c := scenario.Custom()
	c.Keys, c.Callers = 20, 64
	denies := fake{name: "denies", take: func(context.Context, rate.Request) (pglimit.Decision, error) {
		return pglimit.Decision{RetryAfter: time.Hour, At: time.Now()}, nil
	}}
	l := fakeDrive(b, c, denies).load
	for i := range c.Keys {
		if _, err := l.callers[0].limiter.Allow(b.Context(), l.callers[0].keys[i]); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("limiter alone", func(b *testing.B) {
		b.ReportAllocs()
		var next atomic.Int64
		b.RunParallel(func(pb *testing.PB) {
			caller, ctx := l.callers[next.Add(1)], b.Context()
			for i := 0; pb.Next(); i++ {
				if _, err := caller.limiter.AllowN(ctx, caller.keys[i%len(caller.keys)], 1); err != nil {
					b.Error(err)
				}
			}
		})
	})
	b.Run("with the harness", func(b *testing.B) {
		b.ReportAllocs()
		w := window{until: time.Hour}
		var next atomic.Int64
		b.RunParallel(func(pb *testing.PB) {
			caller, ctx := l.callers[next.Add(1)], b.Context()
			for from := l.clock.now(); pb.Next(); {
				from, _ = caller.ask(ctx, l.clock, from, w)
			}
		})
	})
}
