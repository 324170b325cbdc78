package audit_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies/audit"
)

// million is what a hot key sees: 1 in 10 is granted.
func million() (rate.Limit, []audit.Event) {
	events := make([]audit.Event, 1_000_000)
	for i := range events {
		at := int64(i) * 10 * microsecond
		if i%10 == 0 {
			events[i] = grant(at, 1)
		} else {
			events[i] = deny(at, 1)
		}
	}
	return rate.PerSecond(10_000).WithBurst(1), events
}

func BenchmarkCheck(b *testing.B) {
	limit, events := million()
	for _, order := range []string{"sorted", "shuffled"} {
		b.Run(order, func(b *testing.B) {
			for b.Loop() {
				if report := audit.Check(limit, events); !report.OK() {
					b.Fatal(report)
				}
			}
			b.ReportMetric(float64(b.N)*float64(len(events))/b.Elapsed().Seconds(), "events/s")
		})
		rand.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
	}
}

func BenchmarkRecord(b *testing.B) {
	keys := make([]string, 1000)
	for i := range keys {
		keys[i] = fmt.Sprintf("user:%d", i)
	}
	var histories audit.Histories
	request, decision := rate.Request{Tokens: 1, Unit: 1}, rate.Decision{}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		histories.Record(keys[i%len(keys)], request.Tokens, request.Unit, decision)
		i++
	}
}
