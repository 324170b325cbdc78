package bench

import "strings"

// Verdicts without a fault, the most certain first.
const (
	verdictExact     = "exact"          // every decision was compared with the limit
	verdictSampled   = "exact, sampled" // every grant was, and a sample of the denials
	verdictNeverOver = "never over"     // every grant was, but no denial could be judged
	verdictNoFault   = "no fault seen"  // decisions are missing
	verdictNothing   = "nothing to audit"
)

// Verdict is the audit in a few words.
func (r Result) Verdict() string {
	a := r.Audit
	var faults []string
	if a.OverTokens > 0 {
		faults = append(faults, "OVER by "+count(a.OverTokens))
	}
	if a.DenialsNotDue > 0 {
		faults = append(faults, count(a.DenialsNotDue)+" denials not due")
	}
	switch {
	case len(faults) > 0:
		return strings.Join(faults, ", ")
	case a.Audited == 0:
		return verdictNothing
	case !a.Complete || a.KeysWithLostAnswers > 0:
		return verdictNoFault
	case a.JudgedDenials == 0:
		return verdictNeverOver
	case a.DenialSampling > 1:
		return verdictSampled
	}
	return verdictExact
}
