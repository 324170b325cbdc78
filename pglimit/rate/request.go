package rate

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// The greatest lengths of a key and a limiter's name, which together fit one index entry of
// Postgres, and of a request's ID.
const (
	MaxKeyBytes     = 1024
	MaxLimiterBytes = 128
	MaxIDBytes      = 128
)

// Bucket names a bucket: what is limited, and for whom.
type Bucket struct{ Limiter, Key string }

// How long a granted request's ID is kept, see [OnceTaker].
const (
	MinIDTTL = time.Millisecond
	MaxIDTTL = 24 * time.Hour
)

// Request asks for Tokens of one bucket, to be granted in whole multiples of
// Unit.
//
//   - Unit == Tokens: all or nothing. This is Allow and AllowN.
//   - Unit < Tokens: as many whole units as there are. 10 tokens in units of 2,
//     from a bucket that has 7: 6 are granted. Several callers' equal requests
//     can be sent as one in this way.
//   - Tokens == 0: a peek, nothing is taken. The decision says whether Unit
//     tokens (1 if Unit is zero) are there.
type Request struct {
	// Limiter and Key name the bucket: what is limited, and for whom.
	// UTF-8 without NUL, at most MaxLimiterBytes and MaxKeyBytes long.
	Limiter, Key string

	Limit Limit

	// Tokens is how many are wanted; they are granted in multiples of Unit. A Unit
	// larger than the limit's burst could never be granted and is an error.
	Tokens, Unit int64

	// Durability of the grant. One durable request makes the whole call durable.
	Durability Durability

	// Impatient: the call gives up after about 20 ms, with ErrLocked, if somebody else holds
	// a bucket's row locked. One impatient request makes the whole call impatient. A call
	// for several buckets is always impatient, except in a transaction of the caller's, and may
	// give up at once, with ErrNothingTaken.
	Impatient bool

	// Ahead: tokens that come back within this time are granted too. They are taken now, so
	// that nobody else gets them; Decision.Delay says when they may be used. Zero: only
	// tokens that are there. The strategy must be a [Reserver]. Not for a peek.
	//
	// A larger limit does not make reserved tokens due earlier: they keep their times, and those who
	// come under the larger limit are served beside them. Until the last reserved token is due, up to
	// so many tokens are used on top of what the larger limit grants.
	Ahead time.Duration

	// ID, if not empty, names the request, so that it can be sent again after an answer of
	// unknown outcome: it is charged once. UTF-8 without NUL, at most MaxIDBytes long. Only for
	// one request that is all or nothing. See [OnceTaker].
	ID string
}

// Bucket that the request takes from.
func (r *Request) Bucket() Bucket { return Bucket{r.Limiter, r.Key} }

// Validate returns a [*RequestError] that names the field, its value and what is
// allowed, or a [*LimitError], or nil. Every [Strategy] validates what it gets.
func (r Request) Validate() error {
	if err := CheckLimiter(r.Limiter); err != nil {
		return err
	}
	if err := r.Limit.Validate(); err != nil {
		return err
	}
	return r.CheckKeyAndTokens()
}

// CheckKeyAndTokens is Validate for the fields that differ between requests of one limiter:
// all but the limiter's name and the limit.
func (r *Request) CheckKeyAndTokens() error {
	if err := CheckKey(r.Key); err != nil {
		return err
	}
	burst := r.Limit.Burst
	switch {
	case r.Tokens < 0:
		return &RequestError{"Tokens", fmt.Sprintf("is %d: it must not be negative", r.Tokens)}
	case r.Unit < 0:
		return &RequestError{"Unit", fmt.Sprintf("is %d: it must not be negative", r.Unit)}
	case r.Unit > burst:
		field := "Unit"
		if r.Unit == r.Tokens { // all or nothing: the caller set only Tokens
			field = "Tokens"
		}
		return &RequestError{field, fmt.Sprintf("is %d: more than the burst of %d (%v) could never be granted", r.Unit, burst, r.Limit)}
	case r.Tokens > 0 && r.Unit == 0:
		return &RequestError{"Unit", "is 0: set it to Tokens for all or nothing"}
	case r.Unit > r.Tokens && r.Tokens > 0:
		return &RequestError{"Unit", fmt.Sprintf("is %d: it must not be larger than Tokens, which is %d", r.Unit, r.Tokens)}
	case r.Durability != Relaxed && r.Durability != Durable:
		return &RequestError{"Durability", fmt.Sprintf("is %d: it must be Relaxed or Durable", r.Durability)}
	case r.Ahead != 0:
		if err := r.checkAhead(); err != nil {
			return err
		}
	}
	if r.ID != "" {
		return r.checkID()
	}
	return nil
}

func (r *Request) checkAhead() error {
	switch longest := MaxWindow - r.Limit.Window(); {
	case r.Ahead < 0:
		return &RequestError{"Ahead", fmt.Sprintf("is %v: it must not be negative", r.Ahead)}
	case r.Tokens == 0:
		return &RequestError{"Ahead", fmt.Sprintf("is %v: a peek takes nothing, so it must be 0", r.Ahead)}
	case r.Ahead > longest:
		return &RequestError{"Ahead", fmt.Sprintf("is %v: with a limit of %v it must be at most %v", r.Ahead, r.Limit, longest)}
	}
	return nil
}

func (r *Request) checkID() error {
	if r.Tokens == 0 || r.Unit != r.Tokens || r.Ahead != 0 {
		return &RequestError{"ID", fmt.Sprintf("is %q: only a request that takes all or nothing, and nothing Ahead, can have one", r.ID)}
	}
	return checkName("ID", r.ID, MaxIDBytes)
}

// CheckKey returns nil if the key is valid, else a [*RequestError].
func CheckKey(key string) error { return checkName("Key", key, MaxKeyBytes) }

// CheckLimiter returns nil if the limiter's name is valid, else a [*RequestError].
func CheckLimiter(name string) error { return checkName("Limiter", name, MaxLimiterBytes) }

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
