package model

import (
	"math/rand/v2"
	"testing"
)

// Nobody waits for longer than the longer of the two windows after the limit has changed
// or the clock has stepped back, and a step that is too small to be noticed.
func TestNobodyIsLockedOut(t *testing.T) {
	t.Parallel()
	if wait := longestWait(none); wait > 0 {
		t.Errorf("locked out for %d ns more than the longer window", wait)
	}
	if wait := longestWait(noStep); wait <= 0 {
		t.Error("it is not seen that the step is not noticed")
	}
}

// longestWait for a token beyond the longer window.
func longestWait(f fault) (worst int64) {
	for seed := range uint64(150) {
		r := rand.New(rand.NewPCG(seed, 8))
		pick := func(from ...int64) int64 { return from[r.IntN(len(from))] }
		draw := func() Limit {
			rate := pick(1, 10, 1000)
			return Limit{Token: pick(second, 60*second, 3600*second, 86400*second) / rate, Burst: pick(1, rate)}
		}
		bucket, now := Bucket{fault: f}, int64(began)
		before, after := draw(), draw()
		for bucket.Take(now, before, 1, 1) > 0 {
		}
		now += pick(0, 1, before.Token/2, before.Window()/2)
		now -= pick(0, Step, Step+1, second, 30*second, 86400*second)
		for range 2 { // the second caller has the other limit
			bucket.Take(now, after, 1, 1)
			report := bucket.Report(now, after, 1)
			wait := report.At + int64(report.RetryAfter) - now
			worst = max(worst, wait-max(before.Window(), after.Window())-Step)
			before, after = after, before
		}
	}
	return worst
}
