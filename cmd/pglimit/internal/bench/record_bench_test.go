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
	c.Stages.DenialTTL = time.Hour
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

// BenchmarkTurn is what figures over time cost a caller at the end of each interval: to hand
// over what it counted. With 64 callers and intervals of 100 ms, as in the suite, that is 640
// times a second: of those that wait for Postgres, who have few latencies, and of those that
// are answered from memory, who have many.
func BenchmarkTurn(b *testing.B) {
	b.Run("few", func(b *testing.B) { benchmarkTurn(b, few/4) })
	b.Run("many", func(b *testing.B) { benchmarkTurn(b, 2*few) })
}

func benchmarkTurn(b *testing.B, latencies int) {
	t := newTimeline(time.Hour, 64, true)
	r := newRecorder(newBudget(0, 1))
	r.timeline = t
	w := window{until: time.Hour}
	r.begin(w)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		for range latencies {
			r.tally.granted++
			r.tally.grants.record(time.Duration(i%100) * 100 * time.Microsecond)
		}
		r.turn(time.Duration(i) * t.width % time.Hour)
	}
}
