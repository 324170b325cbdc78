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

	// Delay is the time, from At, until what was granted may be used: zero unless
	// Request.Ahead allowed tokens that were still to come. If several units were granted,
	// the last is due then, and each one before it by the refill time of a unit earlier: more
	// than a burst must not be used at once.
	Delay time.Duration

	// Blocked says that the request was denied because the key is blocked, see [Block], or, after
	// a peek, that it would be. BlockedFor is then the time, from At, until the block ends;
	// RetryAfter is at least as long, because the tokens may come back later.
	Blocked    bool
	BlockedFor time.Duration

	// Contended says that the request was denied because somebody else held the
	// row locked, whether or not the tokens were there. Only for_update_nowait does
	// this. The other fields then describe the row as last committed.
	Contended bool

	// HasRow says that Postgres has a row of the bucket, after the decision. Without one the bucket is full, and
	// the next grant makes one. A full bucket may have one, until it is swept.
	HasRow bool

	// At is the database's clock at the decision, in UTC, to the microsecond. A decision
	// FromMemory or FromLease computes it from an earlier answer; FromFallback it is zero.
	At time.Time

	// Source is where the decision was made; Limiter and Key name the bucket, and Limit is
	// the limit that applied. A Limiter sets them; a [Strategy] leaves them zero (but for the
	// Limit of a decision under another limit than asked for, see [Request].ID).
	Source       Source
	Limiter, Key string
	Limit        Limit

	// Rule of the table pglimit.limits that decided, or nil. Observed is what the rule that is only
	// observed would have decided, or nil if there is none, or what it says is not known. See pglimit.Limits.
	Rule     *LimitRule
	Observed *Decision
}
