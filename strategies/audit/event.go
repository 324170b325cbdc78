package audit

import "github.com/pglimit/ratelimit/pglimit/rate"

// Event is one decision about one bucket.
type Event struct {
	// At is the database's time of the decision, in nanoseconds since 1970.
	At int64

	// Wanted tokens, in multiples of Unit; a Unit below 1 counts as 1. Granted tokens,
	// 0 for a denial. All of Granted counts, even if it is more than Wanted. An event that
	// wanted nothing and got nothing is no decision and is left out.
	Wanted, Unit, Granted int64

	// Contended excuses a denial, see [rate.Decision].
	Contended bool

	// Unknown: the answer was lost, and Wanted tokens may have been taken, at At or any time later. It excuses
	// denials that these tokens would explain, and no grant.
	Unknown bool
}

// FromDecision is the event of a request for so many tokens, in multiples of the unit, and its answer.
//
// A peek that found Unit tokens is an event that wanted nothing. A peek that did not find
// them is a denial of Unit tokens: the caller was told so. The decision must come from
// Postgres: decisions of pglimit.FailOpen and other fallbacks have no time.
func FromDecision(tokens, unit int64, decision rate.Decision) Event {
	e := Event{
		At:        decision.At.UnixNano(),
		Wanted:    tokens,
		Unit:      unit,
		Granted:   decision.Granted,
		Contended: decision.Contended,
	}
	if tokens == 0 && !decision.Allowed {
		e.Wanted = max(1, unit)
	}
	return e
}

// missed is the size of the unit that was wanted and not granted. It is 0 if less than a unit is
// missing, because less could not have been granted.
func (e Event) missed() int64 {
	unit := max(1, e.Unit)
	if e.Wanted < unit || max(0, e.Granted) > e.Wanted-unit {
		return 0
	}
	return unit
}
