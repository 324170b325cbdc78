package compare

import (
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// Faults of a strategy under one scenario, all its rounds together.
type Faults struct {
	Over      int64 // the worst over-admission of any key and round, in tokens
	TooMany   int64 // tokens granted above Scenario.AtMost, in the worst round
	NotDue    int64 // denials that were not due
	Deadlocks int64
	Failed    int64 // requests that ended in an error
	Requests  int64 // all
}

// FaultsOf the row under its scenario.
func FaultsOf(s result.Scenario, row result.Row) (f Faults) {
	for _, run := range row.Runs {
		if run.Audit != nil {
			f.Over = max(f.Over, run.Audit.OverTokens)
			f.NotDue += run.Audit.DenialsNotDue
		}
		if s.AtMost > 0 {
			f.TooMany = max(f.TooMany, run.Granted-s.AtMost)
		}
		if run.Deadlocks != nil {
			f.Deadlocks += *run.Deadlocks
		}
		f.Failed += run.Failed()
		f.Requests += run.Failed() + run.Decisions
	}
	return f
}

// Plus adds up the faults of a strategy under several scenarios.
func (f Faults) Plus(other Faults) Faults {
	return Faults{
		max(f.Over, other.Over), max(f.TooMany, other.TooMany), f.NotDue + other.NotDue,
		f.Deadlocks + other.Deadlocks, f.Failed + other.Failed, f.Requests + other.Requests,
	}
}

// Any says whether there is a fault that counts: a wrong decision, or more failures than a network has now and then. A
// deadlock that matters makes a request fail; others that the database counted may be another client's.
func (f Faults) Any() bool { return f.Wrong() || f.FailedShare() > fewFailures }

// fewFailures is the share of requests that may fail without being reported.
const fewFailures = 0.001

// Wrong says that a decision was wrong, which is worse than none.
func (f Faults) Wrong() bool { return f.Over > 0 || f.TooMany > 0 || f.NotDue > 0 }

// FailedShare of all requests.
func (f Faults) FailedShare() float64 { return float64(f.Failed) / float64(max(1, f.Requests)) }
