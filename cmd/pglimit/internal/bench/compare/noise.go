package compare

import (
	"math"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// SingleRun is the difference below which two figures of one run each cannot be told from
// noise, as a share. Runs of a second on a busy machine differ by as much.
const SingleRun = 0.15

// enoughRuns is the number of runs from which ranges are meaningful: the ranges of two runs each are disjoint by chance
// one time in three, those of three runs one time in ten.
const enoughRuns = 3

// Noise says that two figures cannot be told apart: the ranges of their repetitions
// overlap or, where either has fewer than three, they differ by less than [SingleRun].
func Noise(a, b result.Figure) bool {
	overlap := a.Low <= b.High && b.Low <= a.High
	if min(a.Runs, b.Runs) >= enoughRuns {
		return overlap
	}
	return difference(a, b) < SingleRun || overlap && min(a.Runs, b.Runs) > 1
}

// Tie says that neither strategy is clearly faster. It is a little stricter than [Noise], because a recommendation
// follows from it: two rounds may lie close together by chance, so a difference within the wider spread of the two is a
// tie as well.
func Tie(a, b result.Figure) bool {
	return Noise(a, b) || difference(a, b) < max(a.Spread(), b.Spread())
}

// difference as a share of the larger of the two. It is 1 if one is not known.
func difference(a, b result.Figure) float64 {
	larger := max(math.Abs(a.Median), math.Abs(b.Median))
	switch {
	case math.IsNaN(larger):
		return 1
	case larger == 0:
		return 0
	}
	return math.Abs(a.Median-b.Median) / larger
}
