// Package answer says which strategy a report speaks for. The screen and the HTML page both show this answer, so they
// cannot disagree.
//
// The rule is meant to be checked by hand. A strategy with a fault is out. In each load the highest median is the best,
// and a strategy whose rounds overlap with those of the best is too close to call. The strategy that is the best or too
// close to call in most loads is recommended; in a tie, token_bucket.
//
//	answer.go   the answer
//	load.go     one load: the figures, the best, the faults
//	choose.go   the choice, and the words for it
package answer

import (
	"math"
	"slices"
	"strings"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// Answer that a report gives.
type Answer struct {
	Strategies []string // in the order in which they ran
	Loads      []Load   // in the order of the report

	// Take is the strategy to take, Next the one after it. Empty: none can be recommended, or there is no other.
	Take, Next string

	// Close: nothing decides between Take and Next. Take is the default then.
	Close bool

	Headline  string   // one line, without a full stop
	Sentences []string // at most two: the figure that decides, and what speaks against it

	// Noisy is not empty if rounds lie too far apart for an answer: it says so, and what to do. Take is empty then.
	Noisy string

	Faults []string // a phrase for each strategy with a fault: "upsert, hot key: 2 % failed; and 1 other load"
	Audit  Audit
}

// Audit of all runs together.
type Audit struct {
	Decisions int64 // that were audited
	Over      int64 // tokens granted above a limit: the worst key of each run, added up
	Undue     int64 // denials although the tokens were there
	Sampled   bool  // of the denials of some run only a random sample was audited
	Missing   int   // runs of which some grants could not be audited
	Off       int   // runs without an audit
}

// Of the report.
func Of(r result.Report) Answer {
	a := Answer{Audit: auditOf(r.Runs)}
	for _, run := range r.Runs {
		if !slices.Contains(a.Strategies, run.Strategy) {
			a.Strategies = append(a.Strategies, run.Strategy)
		}
	}
	for _, g := range r.Groups() {
		a.Loads = append(a.Loads, loadOf(g, a.Strategies))
	}
	for _, l := range a.Loads {
		l.mark(a.eligible())
	}
	switch {
	case len(r.Capacity) > 0:
		a.ofCapacity(r.Capacity)
	case len(a.Loads) > 0:
		a.choose()
	}
	return a
}

func auditOf(runs []result.Run) (sum Audit) {
	for _, run := range runs {
		if run.Audit == nil {
			sum.Off++
			continue
		}
		sum.Decisions += run.Audit.Audited
		sum.Over += run.Audit.OverTokens
		sum.Undue += run.Audit.DenialsNotDue
		sum.Sampled = sum.Sampled || run.Audit.DenialSampling > 1
		if !run.Audit.Complete || run.Audit.KeysWithLostAnswers > 0 {
			sum.Missing++
		}
	}
	return sum
}

// Published says that the strategy is one of the write-up's statements: they run for comparison, and are never
// recommended beside others.
func Published(strategy string) bool { return strings.HasPrefix(strategy, "published_") }

// fewRounds is the number of rounds below which a range says little: those of two rounds each do not overlap in one
// case of three by chance.
const fewRounds = 3

// singleRun is the difference that single runs may have by chance.
const singleRun = 0.15

// TooClose says that two figures cannot be told apart: their rounds overlap, or the medians differ by less than the
// rounds of either, or by less than 15 % where there are fewer than three rounds.
func TooClose(a, b result.Figure) bool {
	if a.Runs == 0 || b.Runs == 0 {
		return false
	}
	bar := max(a.Spread(), b.Spread())
	if min(a.Runs, b.Runs) < fewRounds {
		bar = max(bar, singleRun)
	} else if a.Low <= b.High && b.Low <= a.High {
		return true
	}
	return math.Abs(a.Median-b.Median) <= bar*max(a.Median, b.Median)
}
