package audit

import "github.com/pglimit/ratelimit/pglimit/rate"

// Event is one decision about one bucket.
type Event struct {
	// At is the database's time of the decision, in nanoseconds since 1970.
	At int64

	// Wanted tokens, in multiples of Unit; a Unit below 1 counts as 1. Granted of
	// them, 0 for a denial. A grant counts as granted even if it is more than was
	// wanted. An event that wanted and got nothing is no decision and is left out.
	Wanted, Unit, Granted int64

	// Contended excuses a denial, see [rate.Decision].
	Contended bool
}

// FromDecision is the event of a request and its answer.
//
// A peek that found Unit tokens is an event that wanted nothing; one that did
// not is a denial of Unit tokens, which is what it told its caller. The decision
// must be Postgres's: what pglimit.FailOpen and the like make up has no time.
func FromDecision(request rate.Request, decision rate.Decision) Event {
	e := Event{
		At:        decision.At.UnixNano(),
		Wanted:    request.Tokens,
		Unit:      request.Unit,
		Granted:   decision.Granted,
		Contended: decision.Contended,
	}
	if request.Tokens == 0 && !decision.Allowed {
		e.Wanted = max(1, request.Unit)
	}
	return e
}

// missed is the unit that was wanted and not granted, or 0 if nothing is missing:
// less than one unit could not have been granted.
func (e Event) missed() int64 {
	unit := max(1, e.Unit)
	if e.Wanted < unit || max(0, e.Granted) > e.Wanted-unit {
		return 0
	}
	return unit
}
