package pglimit

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// The longest names, in bytes: together they fit an index entry of Postgres.
const (
	MaxKeyBytes     = 1024
	MaxLimiterBytes = 128
)

// Request asks for Tokens of one bucket, to be granted in whole multiples of
// Unit.
//
//   - Unit == Tokens: all or nothing. This is Allow and AllowN.
//   - Unit < Tokens: several callers' requests in one, or "as much as there
//     is": of 10 tokens in units of 2, from a bucket that has 7, 6 are granted.
//   - Tokens == 0: a peek, nothing is taken. The decision says whether Unit
//     tokens (1 if it is zero) are there.
type Request struct {
	// Limiter and Key name the bucket: what is limited, and for whom.
	// UTF-8 without NUL, at most MaxLimiterBytes and MaxKeyBytes long.
	Limiter, Key string

	Limit Limit

	// Tokens wanted, and the unit in which they are granted. A Unit larger than
	// the limit's burst could never be granted and is an error.
	Tokens, Unit int64

	// Durability of the grant. One durable request makes the whole call durable.
	Durability Durability

	// Impatient: the call gives up with ErrLocked after about 20 ms if somebody holds a
	// bucket's row locked. One impatient request makes the whole call impatient. A call
	// for several buckets always is, except in the caller's transaction.
	Impatient bool
}

// Validate returns a [*RequestError] that names the field, its value and what is
// allowed, or a [*LimitError], or nil. Every [Strategy] validates what it gets.
func (r Request) Validate() error {
	if err := checkName("Limiter", r.Limiter, MaxLimiterBytes); err != nil {
		return err
	}
	if err := checkName("Key", r.Key, MaxKeyBytes); err != nil {
		return err
	}
	if err := r.Limit.Validate(); err != nil {
		return err
	}
	return r.checkTokens()
}

// checkTokens is Validate without the names and the limit, which are the same for all
// requests of a Limiter.
func (r *Request) checkTokens() error {
	burst := r.Limit.Capacity()
	switch {
	case r.Tokens < 0:
		return &RequestError{"Tokens", fmt.Sprintf("is %d: it must not be negative", r.Tokens)}
	case r.Unit < 0:
		return &RequestError{"Unit", fmt.Sprintf("is %d: it must not be negative", r.Unit)}
	case r.Unit > burst:
		field := "Unit"
		if r.Unit == r.Tokens { // all or nothing: the caller named the tokens
			field = "Tokens"
		}
		return &RequestError{field, fmt.Sprintf("is %d: more than the burst of %d (%v) could never be granted", r.Unit, burst, r.Limit)}
	case r.Tokens > 0 && r.Unit == 0:
		return &RequestError{"Unit", "is 0: set it to Tokens for all or nothing"}
	case r.Unit > r.Tokens && r.Tokens > 0:
		return &RequestError{"Unit", fmt.Sprintf("is %d: it must not be larger than Tokens, which is %d", r.Unit, r.Tokens)}
	case r.Durability != Relaxed && r.Durability != Durable:
		return &RequestError{"Durability", fmt.Sprintf("is %d: it must be Relaxed or Durable", r.Durability)}
	}
	return nil
}

func checkName(field, name string, longest int) error {
	switch {
	case name == "":
		return &RequestError{field, "is empty: name it, with a constant if there is only one"}
	case len(name) > longest:
		return &RequestError{field, fmt.Sprintf("has %d bytes: at most %d are allowed (hash what is longer)", len(name), longest)}
	case strings.IndexByte(name, 0) >= 0:
		return &RequestError{field, fmt.Sprintf("%q has a NUL byte, which Postgres cannot store", name)}
	case !utf8.ValidString(name):
		return &RequestError{field, fmt.Sprintf("%q is not valid UTF-8: encode bytes, as hex for instance", name)}
	}
	return nil
}

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

	// At is the database's clock at the decision, in UTC, to the microsecond.
	At time.Time
}

// Durability says when a grant counts as given.
type Durability int

const (
	// Relaxed: the commit does not wait for the disk. After a crash of the
	// server, at most about 0.6 s of takes (three times wal_writer_delay) are
	// forgotten; a crash of the client forgets nothing.
	Relaxed Durability = iota

	// Durable: a grant is as durable as any other commit of this server before
	// the caller hears of it.
	Durable
)

// String is "relaxed" or "durable".
func (d Durability) String() string {
	switch d {
	case Relaxed:
		return "relaxed"
	case Durable:
		return "durable"
	}
	return fmt.Sprintf("Durability(%d)", int(d))
}

// ParseDurability reads what [Durability.String] writes.
func ParseDurability(text string) (Durability, error) {
	for _, d := range []Durability{Relaxed, Durable} {
		if text == d.String() {
			return d, nil
		}
	}
	return Relaxed, fmt.Errorf("pglimit: durability %q: it must be relaxed or durable", text)
}
