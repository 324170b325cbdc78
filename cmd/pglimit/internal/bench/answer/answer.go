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
	"strings"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// Answer that a report gives.
type Answer struct {
	Strategies []string // in the order in which they ran
	Loads      []Load   // in the order of the report

	// Take is the strategy to take, Next the one after it. Empty: none can be recommended, or there is no other.
	Take, Next string

	// Headline and Because are a sentence each, the first without its full stop. Because has the figures that decide,
	// and what speaks against the strategy. Both may be empty.
	Headline, Because string

	Noisy bool // rounds lie too far apart for an answer. Take is empty then

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
	a := Answer{Strategies: r.Strategies(), Audit: auditOf(r.Runs)}
	if len(r.Capacity) > 0 {
		a.Loads = append(a.Loads, capacityLoad(r.Capacity))
	}
	for _, g := range r.Groups() {
		a.Loads = append(a.Loads, loadOf(g, a.Strategies))
	}
	for _, l := range a.Loads {
		l.mark(a.eligible())
	}
	if len(a.Loads) > 0 {
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

// published says that the strategy is one of the write-up's statements: they run for comparison, and are never
// recommended beside others.
func published(strategy string) bool { return strings.HasPrefix(strategy, "published_") }

// fewRounds is the number of rounds below which a range says little: those of two rounds each do not overlap in one
// case of three by chance.
const fewRounds = 3

// singleRun is the difference that single runs may have by chance, and shortRun if they take less than a second.
const singleRun, shortRun = 0.15, 0.3

// TooClose says that two figures cannot be told apart: their rounds overlap, or the medians differ by less than the
// rounds of either, or by less than 15 % (or 30 %, see shortRun) where there are fewer than three rounds.
func TooClose(a, b result.Figure) bool {
	if a.Runs == 0 || b.Runs == 0 {
		return false
	}
	bar := max(a.Spread(), b.Spread())
	if min(a.Runs, b.Runs) < fewRounds {
		bar = max(bar, singleRun)
		if a.Short || b.Short {
			bar = max(bar, shortRun)
		}
	} else if a.Low <= b.High && b.Low <= a.High {
		return true
	}
	return math.Abs(a.Median-b.Median) <= bar*max(a.Median, b.Median)
}
