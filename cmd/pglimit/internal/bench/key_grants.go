package bench

import (
	"math"
	"time"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// keyGrants returns the most that any key was granted in each interval, beside what its
// limit allows. Nil: nothing was granted.
func (a answers) keyGrants(interval time.Duration) *result.KeyGrants {
	first, last := int64(math.MaxInt64), int64(math.MinInt64)
	for _, events := range a.byKey {
		for _, e := range events {
			if e.kind == granted {
				first, last = min(first, e.at), max(last, e.at)
			}
		}
	}
	if first > last {
		return nil
	}
	out := &result.KeyGrants{
		Interval: interval.Seconds(), Bound: a.bound(interval), Most: make([]int64, (last-first)/int64(interval)+1),
	}
	ofKey := make([]int64, len(out.Most))
	for key, events := range a.byKey {
		if len(events) == 0 {
			continue // of millions of keys most
		}
		sum := int64(0)
		clear(ofKey)
		for _, e := range events {
			if e.kind == granted {
				sum += a.costs[e.cost].Tokens
				ofKey[(e.at-first)/int64(interval)] += a.costs[e.cost].Tokens
			}
		}
		if sum == 0 {
			continue
		}
		out.Keys++
		if sum > out.Granted {
			out.Busiest, out.Granted = a.keys[key], sum
		}
		for i, n := range ofKey {
			out.Most[i] = max(out.Most[i], n)
		}
	}
	return out
}

// bound returns the most that a key may be granted in such an interval.
func (a answers) bound(interval time.Duration) int64 {
	if a.limit.Calendar != "" { // the interval may touch one window more
		return a.limit.Burst * (2 + int64(interval/a.limit.Period))
	}
	refilled := float64(a.limit.Tokens) * float64(interval) / float64(a.limit.Period)
	if sum := float64(a.limit.Burst) + refilled; sum < math.MaxInt64/2 {
		return int64(sum)
	}
	return math.MaxInt64 / 2
}
