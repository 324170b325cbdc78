package model

import (
	"math/rand/v2"
	"testing"
)

// What a report says of the future is what happens then: a unit is granted after
// RetryAfter and not a nanosecond before, the bucket is full after ResetAfter.
func TestAReportIsTrue(t *testing.T) {
	t.Parallel()
	for seed := range runs(t, 150) {
		r := rand.New(rand.NewPCG(seed, 9))
		limits := []Limit{
			{Token: 1 + r.Int64N(1<<r.IntN(40)), Burst: 1 + r.Int64N(30)},
			{Token: second / 10, Burst: 1 + r.Int64N(30)},
			{Token: second, Burst: 1 + r.Int64N(30)},
		}
		var b Bucket
		now := int64(began)
		for range 30 {
			now += r.Int64N(1 << r.IntN(35))
			if r.IntN(10) == 0 {
				now -= r.Int64N(1 << r.IntN(35))
			}
			l := limits[r.IntN(len(limits))]
			unit := 1 + r.Int64N(l.Burst)
			if r.IntN(4) == 0 {
				b.Lease(now, l, LeaseRequest{Want: unit, Share: 1, TTL: 1 + r.Int64N(1<<35)})
			} else {
				b.Take(now, l, unit, unit)
			}
			report := b.Report(now, l, unit)
			due := report.At + int64(report.RetryAfter)
			if b := b; report.RetryAfter > 0 && b.Take(due-1, l, unit, unit) > 0 {
				t.Fatalf("seed %d: %+v: granted before %v", seed, b, report)
			}
			if b := b; report.RetryAfter > 0 && b.Take(due, l, unit, unit) == 0 {
				t.Fatalf("seed %d: %+v: denied after %v", seed, b, report)
			}
			full := report.At + int64(report.ResetAfter)
			if b := b; b.Take(full, l, l.Burst, l.Burst) == 0 {
				t.Fatalf("seed %d: %+v: not full after %v", seed, b, report)
			}
			if b := b; report.ResetAfter > 0 && b.Take(full-1, l, l.Burst, l.Burst) > 0 {
				t.Fatalf("seed %d: %+v: full before %v", seed, b, report)
			}
		}
	}
}
