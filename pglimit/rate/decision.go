package rate

import "time"

// Decision is the answer to a [Request].
type Decision struct {
	// Allowed says that at least one Unit was granted or, after a peek, that Unit
	// tokens are there.
	Allowed bool

	// Granted is how many tokens were granted: for an all-or-nothing request Tokens
	// or 0, else a multiple of Unit.
	Granted int64

	// Remaining is how many whole tokens are in the bucket after the decision. With
	// 3.5 of 20 used: 16.
	Remaining int64

	// RetryAfter is the time, from At, until Unit tokens could be granted if
	// nobody else took any; 0 if they could be granted at once. With 10 tokens per
	// second and an empty bucket: 100 ms for one, 300 ms for three.
	RetryAfter time.Duration

	// ResetAfter is the time, from At, until the bucket is full. With 10 tokens
	// per second and 15 of 20 used: 1.5 s.
	ResetAfter time.Duration

	// Contended says that the request was denied because somebody else held the
	// row locked, whether or not the tokens were there. Only for_update_nowait does
	// this. The other fields then describe the row as last committed.
	Contended bool

	// At is the database's clock at the decision, in UTC, to the microsecond. A decision
	// FromMemory or FromLease computes it from an earlier answer; FromFallback it is zero.
	At time.Time

	// Source is where the decision was made, and Limit the limit that applied. A Limiter
	// sets both; a [Strategy] leaves them zero.
	Source Source
	Limit  Limit
}

// Before returns the decision for r, one of several requests that were sent together as all,
// from the decision d for all. others tokens went to requests after r: the result shows the
// bucket before they got them.
func (d Decision) Before(others int64, all, r *Request) Decision {
	if others > 0 || r.Unit != all.Unit {
		d = d.Plus(others, r)
	}
	d.Allowed, d.Granted = true, r.Tokens
	return d
}

// Plus returns d as it would read for r if the bucket held that many more tokens.
func (d Decision) Plus(tokens int64, r *Request) Decision {
	if tokens > 0 {
		d.Remaining = min(d.Remaining+tokens, r.Limit.Burst)
		d.ResetAfter = max(0, d.ResetAfter-r.Limit.RefillTime(tokens))
	}
	d.RetryAfter = 0
	if d.Remaining < r.Unit {
		d.RetryAfter = max(0, d.ResetAfter-r.Limit.RefillTime(r.Limit.Burst-r.Unit))
	}
	return d
}
