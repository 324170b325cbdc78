package rate

import (
	"math"
	"time"
)

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

	// Lease is nil, but of the first grant out of a lease: then it is that lease, which this decision set aside.
	Lease *Lease

	// Rule of the table pglimit.limits that decided, or nil. Observed is what the rule that is only
	// observed would have decided, or nil if there is none, or what it says is not known. See pglimit.Limits.
	Rule     *LimitRule
	Observed *Decision
}

// Crosses says whether this grant used up the given share of the limit's burst, from 0 to 1, of which less was used
// before it: 0.8 of 10 tokens is the eighth. So of all grants in a calendar window, in whatever process, exactly one
// crosses 0.8, and the one with the last token crosses 1: an "if" behind a decision sends one mail at 80 % and another
// at 100 %.
//
// Nothing is stored for it. Where tokens come back, by refilling or by a [Refund], the next grant that uses up the
// share again crosses it again. So it is with what a lease gives back; a lease is used up with its first grant. The
// same share of another limit is another number of tokens. A request that is sent again with its ID is told again
// what it was granted. What Settle charges on top of a grant crosses unseen, and an answer that is lost tells nobody.
// WarmUp, which tells of a burst or nothing, does not know shares.
func (d Decision) Crosses(share float64) bool {
	left := d.Remaining
	switch {
	case d.Granted == 0 || d.Source.IsFree():
		return false
	case d.Lease != nil:
		left = d.Lease.Left.Remaining
		d.Granted = d.Lease.Tokens
	case d.Source == FromLease: // the first grant has told it
		return false
	case d.Delay > 0 && d.Limit.Calendar == "": // taken ahead
		left -= int64((d.Delay-1)/d.Limit.Token()) + 1
	}
	burst := float64(d.Limit.Burst)
	most := burst - math.Ceil(burst*share*(1-4e-16)) // 0.07 × 100 is a little more than 7
	return float64(left) <= most && most < float64(left+d.Granted)
}
