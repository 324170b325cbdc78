package rate

import "time"

// Decision is the answer to a [Request].
type Decision struct {
	// Allowed says that at least one Unit was granted; of a peek, that Unit
	// tokens are there.
	Allowed bool

	// Granted tokens: Tokens or 0 for all or nothing, else a multiple of Unit.
	Granted int64

	// Remaining whole tokens in the bucket after the decision. Burst 20 of which
	// 3.5 are used: 16.
	Remaining int64

	// RetryAfter is the time, from At, until Unit tokens could be granted if
	// nobody else took any; 0 if they could be at once. With 10 tokens per second
	// and an empty bucket: 100 ms for one, 300 ms for three.
	RetryAfter time.Duration

	// ResetAfter is the time, from At, until the bucket is full. With 10 tokens
	// per second and 15 of 20 used: 1.5 s.
	ResetAfter time.Duration

	// Contended says that the request was denied because somebody else held the
	// row, whether or not the tokens were there. Only for_update_nowait does
	// this; the other fields are then those of the row as last committed.
	Contended bool

	// At is the database's clock at the decision, in UTC, to the microsecond. The zero time
	// if it comes FromFallback.
	At time.Time

	// Source is where the decision was made, and Limit the one that it was made by. A
	// Limiter says so; of what a [Strategy] answers they are zero.
	Source Source
	Limit  Limit
}

// Before is the decision for one of several requests that were decided together, as all:
// as the bucket was when it had been granted its tokens, and those behind it had not.
func (d Decision) Before(others int64, all, r *Request) Decision {
	if others > 0 || r.Unit != all.Unit {
		d = d.Plus(others, r)
	}
	d.Allowed, d.Granted = true, r.Tokens
	return d
}

// Plus so many tokens, which the bucket has besides: what it says of them to the request.
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
