package model

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// Ranges keep the promise too, with limits side by side, refunds and steps of the clock; and
// what they tell is true.
func TestRangesAreNeverOver(t *testing.T) {
	t.Parallel()
	for seed := range runs(t, 100) {
		r := rand.New(rand.NewPCG(seed, 10))
		limits := []Limit{NewLimit(7, time.Second, 1), NewLimit(1, time.Second, 1), NewLimit(100, time.Second, 1)}[:1+r.IntN(3)]
		judge := NewJudge(limits...)
		var b Ranges
		var passed, offset, last int64
		var lastGrant int
		for range 500 {
			passed += r.Int64N(second / 5)
			if r.IntN(50) == 0 {
				by := []int64{Step, second, 3600 * second}[r.IntN(3)]
				if r.IntN(2) == 0 {
					by = -by
				}
				offset += by
				judge.Step(passed, by)
			}
			now, l := began+passed+offset, limits[r.IntN(len(limits))]
			report := b.Report(now, l, 1)
			switch {
			case r.IntN(10) == 0:
				before := len(b.All)
				if b.Refund(now, l, 1, last, 0); len(b.All) < before {
					judge.Refund(lastGrant)
				}
				last = 0
			case b.Take(now, l, 1, 1) == 1:
				last, lastGrant = now, judge.Grant(passed, 1)
				if report.RetryAfter > 0 {
					t.Fatalf("seed %d: granted, %v too early", seed, report.RetryAfter)
				}
			default:
				due := now + int64(report.RetryAfter)
				early, late := Ranges{slices.Clone(b.All)}, Ranges{slices.Clone(b.All)}
				if early.Take(due-1, l, 1, 1) == 1 || late.Take(due, l, 1, 1) == 0 {
					t.Fatalf("seed %d: it is not true that one can be had after %v", seed, report.RetryAfter)
				}
			}
		}
		if over := judge.Tokens(judge.Over()); over > 0 {
			t.Fatalf("seed %d: %d tokens over", seed, over)
		}
	}
}
