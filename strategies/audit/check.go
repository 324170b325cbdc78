package audit

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies/internal/warmup"
	"github.com/pglimit/ratelimit/strategies/internal/window"
)

// Check checks the events of one bucket, in any order, as [History.Check] does.
func Check(rule rate.Rule, limit rate.Limit, events []Event, beside ...rate.Limit) Report {
	var h History
	for _, e := range events {
		h.Add(e)
	}
	return h.Check(rule, limit, beside...)
}

// Check checks the history against the limit, by the rule of the strategy that decided; nil is the rule of a token
// bucket. It takes time n log n, or n if the events are in order of time already.
//
// A token bucket and any rule that is not named here: granted tokens are at most a burst and what the rate brings
// back; with a Calendar, at most a burst in each window. A denial was due if the tokens were not there.
//
// strategies.SlidingWindow and strategies.SlidingLog: never more than Limit.Burst in any Limit.Window, wherever that
// begins; a denial was due if the tokens were not there with every cell counting whole until its last grant is a window
// old. With MinInterval, all of a grant that follows another too soon is over. With CountDenied, it is not checked
// whether denials were due.
//
// strategies.WarmUp: never more than the limit; a denial was due if the grants before it were not paid for, by a key
// that was cold at first.
//
// If other limits were in force beside this one, or instead of it, pass them too. Then Check tests the grants against
// the loosest burst and the loosest rate of all limits (the largest burst in the shortest window), and does not test
// whether a denial was due.
func (h *History) Check(rule rate.Rule, limit rate.Limit, beside ...rate.Limit) Report {
	switch of := rule.(type) {
	case warmup.Rule:
		return h.checkWarmUp(of, limit, beside)
	case window.Rule:
		return h.checkWindow(of, limit, beside)
	}
	return h.checkBucket(limit, beside)
}

func (h *History) checkBucket(limit rate.Limit, beside []rate.Limit) Report {
	report, denials := h.begin(limit, beside)
	if report.Err != nil {
		return report
	}
	w := newWalk(limit, beside)
	h.replay(denials, w.grant, func(e entry, maybe int64) { w.deny(e, maybe, &report) })
	report.Over = w.over()
	return report
}

// begin returns a report of what can be counted without a rule, and the denials that are to be checked.
func (h *History) begin(limit rate.Limit, beside []rate.Limit) (report Report, denials []entry) {
	report = Report{
		Err: validate(limit, beside), Grants: int64(len(h.grants)), Denials: h.denied, Contended: h.contended, Unknown: int64(len(h.unknown)),
	}
	for _, g := range h.grants {
		report.Granted = addSaturated(report.Granted, g.n)
	}
	h.sort()
	if len(beside) == 0 {
		denials = h.denials
	}
	return report, denials
}

// replay goes through the grants and those denials in order of time. Of those at the same time, the grants come first.
// maybe is how many tokens may have been taken before a denial besides.
func (h *History) replay(denials []entry, grant func(entry), deny func(e entry, maybe int64)) {
	unknown, maybe := h.unknown, int64(0)
	judge := func(e entry) {
		for ; len(unknown) > 0 && unknown[0].at <= e.at; unknown = unknown[1:] {
			maybe = addSaturated(maybe, unknown[0].n)
		}
		deny(e, maybe)
	}
	for _, g := range h.grants {
		for ; len(denials) > 0 && denials[0].at < g.at; denials = denials[1:] {
			judge(denials[0])
		}
		grant(g)
	}
	for _, e := range denials {
		judge(e)
	}
}

func validate(limit rate.Limit, beside []rate.Limit) error {
	err := limit.Validate()
	if err == nil && limit.Calendar != "" {
		_, err = limit.WindowEnd(time.Time{})
	}
	for _, other := range beside {
		err = cmp.Or(err, other.Validate())
		if other.Calendar != limit.Calendar {
			err = cmp.Or(err, fmt.Errorf("pglimit: audit: %v beside %v: of limits with a Calendar, all must have the same", other, limit))
		}
	}
	return err
}

// walk is a bucket that grants every request, and so may come to owe more than it can hold.
type walk struct {
	limit rate.Limit
	ends  int64 // the window of its calendar
	token int64 // the price of a token: the nanoseconds in which it comes back, rounded up
	burst int64

	at    int64 // of the last event; nothing is owed at first, so the zero value will do
	owes  debt
	busy  span // since the bucket was last full
	worst span
	peak  debt // at the end of worst
}

// debt is a number of tokens, at most the largest, which is more than twice what any bucket holds; and the part of
// one that has not come back yet, in nanoseconds.
type debt struct {
	tokens uint64
	part   int64
}

type span struct{ from, to, granted int64 }

func newWalk(limit rate.Limit, beside []rate.Limit) walk {
	w := walk{limit: limit, ends: math.MinInt64, token: int64(limit.Token()), burst: limit.Burst}
	for _, other := range beside {
		w.token, w.burst = min(w.token, int64(other.Token())), max(w.burst, other.Burst)
	}
	return w
}

func (w *walk) settle(at int64) {
	if w.limit.Calendar != "" {
		if w.at = at; at >= w.ends {
			ends, _ := w.limit.WindowEnd(time.Unix(0, at)) // validate has tried it
			w.ends, w.owes = ends.UnixNano(), debt{}
		}
		return
	}
	passed := uint64(at) - uint64(w.at) // the difference of two int64 always fits an uint64
	back, part := passed/uint64(w.token), int64(passed%uint64(w.token))
	if w.at = at; w.owes.part < part {
		back, part = back+1, part-w.token
	}
	if w.owes.tokens < back {
		w.owes = debt{}
	} else {
		w.owes.tokens, w.owes.part = w.owes.tokens-back, w.owes.part-part
	}
}

func (w *walk) grant(e entry) {
	w.settle(e.at)
	if w.owes == (debt{}) {
		w.busy = span{from: e.at}
	}
	if w.owes.tokens += uint64(e.n); w.owes.tokens < uint64(e.n) {
		w.owes.tokens = math.MaxUint64
	}
	w.busy.to, w.busy.granted = e.at, addSaturated(w.busy.granted, e.n)
	if w.owes.tokens > w.peak.tokens || w.owes.tokens == w.peak.tokens && w.owes.part > w.peak.part {
		w.peak, w.worst = w.owes, w.busy
	}
}

func (w *walk) deny(e entry, maybe int64, report *Report) {
	w.settle(e.at)
	if w.owes.tokens > uint64(w.burst) || maybe > w.burst || e.n > w.burst {
		return
	}
	spare := w.burst - int64(w.owes.tokens) - maybe - e.n // less a part of a token
	if spare < 0 || spare == 0 && w.owes.part > 0 {
		return
	}
	late := spare*w.token - w.owes.part
	report.addNotDue(Denial{
		At:   time.Unix(0, e.at).UTC(),
		Unit: e.n,
		Free: e.n + late/w.token,
		Late: time.Duration(late),
	})
}

func (w *walk) over() Over {
	owes := w.peak.tokens
	if w.peak.part > 0 {
		owes = max(owes, owes+1)
	}
	if owes <= uint64(w.burst) {
		return Over{}
	}
	return Over{
		Tokens:  int64(min(owes-uint64(w.burst), math.MaxInt64)),
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
