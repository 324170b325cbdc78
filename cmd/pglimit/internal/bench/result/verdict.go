package result

import (
	"cmp"
	"fmt"
	"slices"
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
func (r Run) Over() bool { return r.over() > 0 }

// byGravity orders runs by the audit: first those without a fault, last those that granted too much, which a limiter
// must never do.
func byGravity(a, b Run) int {
	return cmp.Or(cmp.Compare(a.over(), b.over()), cmp.Compare(a.notDue(), b.notDue()), cmp.Compare(a.doubt(), b.doubt()))
}

func (r Run) over() int64 {
	if r.Audit == nil {
		return 0
	}
	return r.Audit.OverTokens
}

func (r Run) notDue() int64 {
	if r.Audit == nil {
		return 0
	}
	return r.Audit.DenialsNotDue
}

// doubt is how uncertain a verdict without a fault is.
func (r Run) doubt() int {
	return slices.Index([]string{VerdictExact, VerdictSampled, VerdictNeverOver, VerdictNoFault, VerdictNothing}, r.Verdict())
}
