package result

import (
	"fmt"
	"strings"
)

// Verdicts without a fault, the most certain first.
const (
	VerdictExact     = "exact"          // every decision was compared with the limit
	VerdictSampled   = "exact, sampled" // every grant was, and a sample of the denials
	VerdictNeverOver = "never over"     // every grant was, but no denial could be judged
	VerdictNoFault   = "no fault seen"  // decisions are missing
	VerdictNothing   = "nothing to audit"
	VerdictOff       = "not audited"
)

// Judge returns the audit in a few words. denied is how many requests of the run were.
func (a Audit) Judge(denied int64) string {
	var faults []string
	if a.OverTokens > 0 {
		faults = append(faults, fmt.Sprintf("OVER by %d", a.OverTokens))
	}
	if a.DenialsNotDue > 0 {
		faults = append(faults, fmt.Sprintf("%d denials not due", a.DenialsNotDue))
	}
	switch {
	case len(faults) > 0:
		return strings.Join(faults, ", ")
	case a.Audited == 0:
		return VerdictNothing
	case !a.Complete || a.KeysWithLostAnswers > 0:
		return VerdictNoFault
	case denied == 0 && a.AuditedDenials == 0:
		return VerdictExact // all was granted, and all of that was due
	case a.JudgedDenials == 0:
		return VerdictNeverOver
	case a.DenialSampling > 1:
		return VerdictSampled
	}
	return VerdictExact
}

// Verdict of the audit, in a few words.
func (r Run) Verdict() string {
	if r.Audit == nil {
		return VerdictOff
	}
	return r.Audit.Verdict
}

// Over says that the run granted more than its limit.
func (r Run) Over() bool { return r.Audit != nil && r.Audit.OverTokens > 0 }

// gravity orders runs by what the audit says of them, faults last.
func gravity(r Run) int64 {
	if r.Audit == nil {
		return 0
	}
	if a := r.Audit; a.OverTokens > 0 || a.DenialsNotDue > 0 {
		return 100 + a.OverTokens*1000 + a.DenialsNotDue
	}
	for i, verdict := range []string{VerdictExact, VerdictSampled, VerdictNeverOver, VerdictNoFault, VerdictNothing} {
		if r.Audit.Verdict == verdict {
			return int64(i)
		}
	}
	return 0
}
