package audit

import (
	"math"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
)

// Check holds the events of one bucket, in any order, against the limit. It takes
// time n log n, or n if they are in order of time already.
func Check(limit pglimit.Limit, events []Event) Report {
	var h History
	for _, e := range events {
		h.Add(e)
	}
	return h.Check(limit)
}

// Check the history against the limit.
func (h *History) Check(limit pglimit.Limit) Report {
	report := Report{
		Err:       limit.Validate(),
		Grants:    int64(len(h.grants)),
		Denials:   h.denied,
		Contended: h.contended,
	}
	for _, g := range h.grants {
		report.Granted = addSaturated(report.Granted, g.n)
	}
	if report.Err != nil {
		return report
	}

	h.sort()
	w := newWalk(limit)
	denials := h.denials
	for _, grant := range h.grants {
		// Of one microsecond, grants come first.
		for len(denials) > 0 && denials[0].at < grant.at {
			w.deny(denials[0], &report)
			denials = denials[1:]
		}
		w.grant(grant)
	}
	for _, denial := range denials {
		w.deny(denial, &report)
	}
	report.Over = w.over()
	return report
}

// walk is a bucket that grants whatever it is told to, and so may come to owe more
// than it can hold. The worst is the most it ever owed.
type walk struct {
	perToken, perMicrosecond, capacity uint64 // in parts

	at    int64 // nothing is owed at first, so it does not matter when that was
	debt  wide
	busy  span // since the bucket was last full
	worst span
	peak  wide // debt at the end of worst
}

type span struct{ from, to, granted int64 }

func newWalk(limit pglimit.Limit) walk {
	perToken, perMicrosecond := limit.Parts()
	return walk{
		perToken:       uint64(perToken),
		perMicrosecond: uint64(perMicrosecond),
		capacity:       uint64(limit.Capacity()) * uint64(perToken), // a valid limit's fits
	}
}

func (w *walk) settle(at int64) {
	// The difference of two int64 always fits an uint64.
	w.debt = w.debt.minus(product(uint64(at)-uint64(w.at), w.perMicrosecond))
	w.at = at
}

func (w *walk) grant(e entry) {
	w.settle(e.at)
	if w.debt.isZero() {
		w.busy = span{from: e.at}
	}
	w.debt = w.debt.plus(product(uint64(e.n), w.perToken))
	w.busy.to, w.busy.granted = e.at, addSaturated(w.busy.granted, e.n)
	if w.peak.less(w.debt) {
		w.peak, w.worst = w.debt, w.busy
	}
}

func (w *walk) deny(e entry, report *Report) {
	w.settle(e.at)
	free := wide{lo: w.capacity}.minus(w.debt)
	need := product(uint64(e.n), w.perToken)
	if free.less(need) {
		return
	}
	spare := free.minus(need).lo / w.perMicrosecond
	report.addNotDue(Denial{
		At:   time.UnixMicro(e.at).UTC(),
		Unit: e.n,
		Free: int64(free.lo / w.perToken),
		Late: time.Duration(min(spare, math.MaxInt64/uint64(time.Microsecond))) * time.Microsecond,
	})
}

func (w *walk) over() Over {
	over := w.peak.minus(wide{lo: w.capacity})
	if over.isZero() {
		return Over{}
	}
	return Over{
		Tokens:  over.dividedUp(w.perToken),
		Granted: w.worst.granted,
		From:    time.UnixMicro(w.worst.from).UTC(),
		To:      time.UnixMicro(w.worst.to).UTC(),
	}
}

// addSaturated is a + b for numbers that are not negative, at most the largest.
func addSaturated(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
