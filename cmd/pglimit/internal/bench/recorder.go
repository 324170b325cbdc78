package bench

import (
	"time"

	"github.com/pglimit/ratelimit/pglimit"
)

// recorder has what one caller saw. It belongs to that caller, so recording takes no lock and shares no cache line.
// From time to time it is handed to the timeline.
type recorder struct {
	timeline *timeline // nil during the warm-up, of which only the history is kept
	history  history

	from   time.Duration // when the run began
	number int           // of the interval that is counted
	end    time.Duration // of that interval
	tally  tally

	_ [64]byte // keeps others out of the last cache line
}

func newRecorder(b *budget) *recorder {
	return &recorder{history: newHistory(b), end: forever}
}

// begin is the beginning of a run.
func (r *recorder) begin(w window) {
	r.from = w.from
	if r.timeline != nil {
		r.turn(w.from)
	}
}

// turn hands over what was counted, and begins the interval of that moment.
func (r *recorder) turn(at time.Duration) {
	r.finish()
	r.number, r.end = r.timeline.slot(at - r.from)
	if r.end != forever {
		r.end += r.from
	}
}

func (r *recorder) turnIfDue(at time.Duration) {
	if at >= r.end || r.tally.full() {
		r.turn(at)
	}
}

// finish hands over what was counted.
func (r *recorder) finish() {
	if r.timeline != nil {
		r.timeline.hand(r.number, &r.tally)
		r.tally.clear()
	}
}

// decision records an answer: how long it took, when it came, and whether that was before
// the end of the run.
func (r *recorder) decision(key uint32, cost uint8, d *pglimit.Decision, took, at time.Duration, inTime bool) {
	// A decision without a time cannot be audited (see internal/published). If it
	// is a denial, no verdict on the others depends on it.
	switch {
	case !d.At.IsZero():
		r.history.answer(key, cost, d)
	case d.Allowed:
		r.history.lose(key)
	}
	if r.timeline == nil {
		return
	}
	r.turnIfDue(at)
	r.tally.slowest = max(r.tally.slowest, took)
	switch kindOf(d) {
	case granted:
		r.tally.granted++
		r.tally.tokens += d.Granted
		if inTime {
			r.tally.grantedInTime++
		}
		r.tally.grants = append(r.tally.grants, took)
		return
	case contended:
		r.tally.contended++
	}
	r.tally.denied++
	if inTime {
		r.tally.deniedIn++
	}
	r.tally.denials = append(r.tally.denials, took)
}

// failure records a request that got no decision. An error that is an answer does not count among the latencies of
// decisions: a refusal is often faster, and a deadlock slower. A wait that was given up does count, with its duration:
// otherwise a server that stalls would look fast.
func (r *recorder) failure(key uint32, err error, took, at time.Duration) {
	kind, lost := classify(err)
	if lost {
		r.history.lose(key)
	}
	text := ""
	if r.tally.errors[kind] == nil && kind != kindUnanswered { // which says only that its context ended
		text = err.Error()
	}
	r.fail(kind, text, took, at)
}

// unserved records an arrival that was never sent, with the time that it had waited; its answer would have taken
// longer. It counts as failed when it was due, or all of them would seem to have failed at the end.
func (r *recorder) unserved(waited, due time.Duration) { r.fail(kindUnserved, "", waited, due) }

func (r *recorder) fail(kind, text string, took, at time.Duration) {
	if r.timeline == nil {
		return
	}
	r.turnIfDue(at)
	r.tally.fail(kind, text, 1)
	if stillWaiting(kind) {
		r.tally.waits = append(r.tally.waits, took)
	}
}
