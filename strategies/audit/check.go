package audit

import (
	"cmp"
	"math"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Check checks the events of one bucket, in any order, against its limit. It takes time
// n log n, or n if the events are in order of time already.
//
// If other limits were in force beside this one, or instead of it, pass them too. Then Check
// tests the grants against the loosest burst and the loosest rate of all limits, and does
// not test whether a denial was due.
func Check(limit rate.Limit, events []Event, beside ...rate.Limit) Report {
	var h History
	for _, e := range events {
		h.Add(e)
	}
	return h.Check(limit, beside...)
}

// Check checks the history as the function [Check] does.
func (h *History) Check(limit rate.Limit, beside ...rate.Limit) Report {
	report := Report{
		Err:       validate(limit, beside),
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
	w := newWalk(limit, beside)
	denials := h.denials
	if len(beside) > 0 {
		denials = nil
	}
	for _, grant := range h.grants {
		// Of grants and denials at the same time, the grants come first.
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

func validate(limit rate.Limit, beside []rate.Limit) error {
	err := limit.Validate()
	for _, other := range beside {
		err = cmp.Or(err, other.Validate())
	}
	return err
}

// walk is a bucket that grants every request, and so may come to owe more than it can hold.
// It owes nanoseconds. worst is the span at whose end it owed most.
type walk struct {
	token    uint64 // the price of a token: the time in which it comes back, rounded up
	capacity wide

	at    int64 // of the last event; nothing is owed at first, so the zero value will do
	debt  wide
	busy  span // since the bucket was last full
	worst span
	peak  wide // debt at the end of worst
}

type span struct{ from, to, granted int64 }

func newWalk(limit rate.Limit, beside []rate.Limit) walk {
	token, burst := price(limit), limit.Burst
	for _, other := range beside {
		token, burst = min(token, price(other)), max(burst, other.Burst)
	}
	return walk{token: token, capacity: product(uint64(burst), token)}
}

// price is the price of a token in nanoseconds. The limit must be valid.
func price(l rate.Limit) uint64 { return (uint64(l.Period)-1)/uint64(l.Tokens) + 1 }

func (w *walk) settle(at int64) {
	// The difference of two int64 always fits an uint64.
	w.debt = w.debt.minus(wide{lo: uint64(at) - uint64(w.at)})
	w.at = at
}

func (w *walk) grant(e entry) {
	w.settle(e.at)
	if w.debt.isZero() {
		w.busy = span{from: e.at}
	}
	w.debt = w.debt.plus(product(uint64(e.n), w.token))
	w.busy.to, w.busy.granted = e.at, addSaturated(w.busy.granted, e.n)
	if w.peak.less(w.debt) {
		w.peak, w.worst = w.debt, w.busy
	}
}

func (w *walk) deny(e entry, report *Report) {
	w.settle(e.at)
	free := w.capacity.minus(w.debt)
	need := product(uint64(e.n), w.token)
	if free.less(need) {
		return
	}
	tokens, _ := free.divided(w.token)
	nanos, _ := free.minus(need).divided(1)
	report.addNotDue(Denial{
		At:   time.Unix(0, e.at).UTC(),
		Unit: e.n,
		Free: tokens,
		Late: time.Duration(nanos),
	})
}

func (w *walk) over() Over {
	tokens, part := w.peak.minus(w.capacity).divided(w.token)
	if part {
		tokens = addSaturated(tokens, 1)
	}
	if tokens == 0 {
		return Over{}
	}
	return Over{
		Tokens:  tokens,
		Granted: w.worst.granted,
		From:    time.Unix(0, w.worst.from).UTC(),
		To:      time.Unix(0, w.worst.to).UTC(),
	}
}

// addSaturated is a + b for numbers that are not negative, at most the largest.
func addSaturated(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
