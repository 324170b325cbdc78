package rate

import (
	"errors"
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

// How long a granted request's ID may be kept, see [Request].IDTTL.
const (
	MinIDTTL = time.Millisecond
	MaxIDTTL = 24 * time.Hour
)

// Request asks a [Strategy] for Tokens of one bucket, to be granted in whole multiples of
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

	// Ahead: tokens that come back within this time are granted too, in the order in which they
	// are asked for. They are taken now, so that nobody else gets them; Decision.Delay says when
	// they may be used. Zero: only tokens that are there. Not for a peek.
	//
	// A larger limit does not make reserved tokens due earlier: they keep their times, and those who
	// come under the larger limit are served beside them. Until the last reserved token is due, up to
	// so many tokens are used on top of what the larger limit grants.
	Ahead time.Duration

	// Group: requests of one call of Take with the same Group stand or fall together. They follow
	// one another and are for different buckets, each all or nothing, without ID or Block. With Ahead,
	// each bucket reserves as it does for a request by itself, and all tokens are used when the last
	// are due: a group that is due only after the end of one of its calendar windows cannot be granted. If one of them cannot be granted, nothing is taken for the group, and nothing written:
	// Granted of its decisions is zero, and Allowed says that this bucket had the tokens. Zero:
	// the request stands by itself.
	Group int

	// ID, if not empty, names the request, so that it can be sent again after an answer of
	// unknown outcome: it is charged once. If the ID was granted tokens of the same bucket within
	// the IDTTL before, the decision is the first one, and nothing is taken. A denial is not kept:
	// the next try is decided anew. An ID that was granted another number of tokens is a
	// *RequestError. UTF-8 without NUL, at most MaxIDBytes long. Only for a request that is all or
	// nothing, and alone in its call of Take.
	ID string

	// IDTTL is how long a granted ID is kept, from MinIDTTL to MaxIDTTL. Only with an ID.
	IDTTL time.Duration

	// Block, if not nil, counts denials, and blocks the key by its rules. Looking a block up,
	// counting and deciding are one round trip. A denial of a blocked key writes nothing. A peek
	// says whether the key is blocked, and counts nothing. Only for a request that is all or
	// nothing, or a peek, and alone in its call of Take.
	Block *Block
}

// Bucket that the request takes from.
func (r *Request) Bucket() Bucket { return Bucket{r.Limiter, r.Key} }

// Validate returns a [*RequestError] that names the field, its value and what is
// allowed, or a [*LimitError] or [*BlockError], or nil.
func (r Request) Validate() error {
	if err := CheckLimiter(r.Limiter); err != nil {
		return err
	}
	if err := r.Limit.Validate(); err != nil {
		return err
	}
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
	case r.Plain():
		return nil
	}
	return r.validateRest()
}

// Plain says that the request has none of what not every strategy can do: Ahead, Group, ID or Block.
func (r *Request) Plain() bool {
	return r.Ahead == 0 && r.Group == 0 && r.ID == "" && r.IDTTL == 0 && r.Block == nil
}

// Unsupported is what Check of the strategy of that name returns for a request with Ahead, Group, ID or Block, none of
// which it knows: an error that satisfies errors.Is(err, errors.ErrUnsupported). For a Limit with a Calendar, which it
// does not know either, it is a [*LimitError]. It is nil if the request has none of these.
func Unsupported(strategy string, r *Request) error {
	var what string
	switch {
	case r.Limit.Calendar != "":
		return &LimitError{r.Limit, "Calendar", fmt.Sprintf("is %q: the strategy %s does not count in windows of the calendar (token_bucket does)", r.Limit.Calendar, strategy)}
	case r.Ahead != 0:
		what = "reserve tokens (token_bucket, upsert and warm_up can)"
	case r.Group != 0:
		what = "take all or nothing from several buckets (token_bucket can)"
	case r.ID != "":
		what = "charge a request with an ID once (token_bucket can)"
	case r.Block != nil:
		what = "block keys (token_bucket can)"
	default:
		return nil
	}
	return fmt.Errorf("pglimit: the strategy %s cannot %s: %w", strategy, what, errors.ErrUnsupported)
}

// validateRest checks the fields that most requests leave out.
func (r *Request) validateRest() error {
	whole := r.Tokens > 0 && r.Unit == r.Tokens
	allOrNothing := whole && r.Ahead == 0
	switch {
	case r.Group != 0 && (!whole || r.ID != "" || r.Block != nil):
		return &RequestError{"Group", fmt.Sprintf("is %d: the requests of a group take all or nothing (this one %d tokens in units of %d), without ID or Block", r.Group, r.Tokens, r.Unit)}
	case r.ID != "" && (!allOrNothing || r.Block != nil):
		return &RequestError{"ID", fmt.Sprintf("is %q: only a request that takes all or nothing, and nothing Ahead, without Block, can have one", r.ID)}
	case r.ID != "" && (r.IDTTL < MinIDTTL || r.IDTTL > MaxIDTTL):
		return &RequestError{"IDTTL", fmt.Sprintf("is %v: it must be from %v to %v", r.IDTTL, MinIDTTL, MaxIDTTL)}
	case r.ID == "" && r.IDTTL != 0:
		return &RequestError{"IDTTL", fmt.Sprintf("is %v: it is for a request with an ID", r.IDTTL)}
	case r.Block != nil && (r.Ahead != 0 || r.Tokens > 0 && !allOrNothing):
		return &RequestError{"Block", fmt.Sprintf("is set, for %d tokens in units of %d, Ahead %v: with it, a request takes all or nothing, and nothing ahead", r.Tokens, r.Unit, r.Ahead)}
	}
	if r.Block != nil {
		return r.Block.Validate()
	}
	if r.ID != "" {
		return checkName("ID", r.ID, MaxIDBytes)
	}
	if r.Ahead != 0 {
		return r.checkAhead()
	}
	return nil
}

// ValidateCall returns an error for requests that the strategy cannot decide in one call of Take.
// Every [Strategy] begins with it.
func ValidateCall(strategy Strategy, requests []Request) error {
	for i := range requests {
		r := &requests[i]
		if err := r.Validate(); err != nil {
			return err
		}
		if err := strategy.Check(r); err != nil {
			return err
		}
		switch {
		case len(requests) == 1:
		case r.ID != "":
			return &RequestError{"ID", fmt.Sprintf("is %q: a request with an ID is alone in its call (this one has %d)", r.ID, len(requests))}
		case r.Block != nil:
			return &RequestError{"Block", fmt.Sprintf("is set: a request with a Block is alone in its call (this one has %d)", len(requests))}
		}
	}
	for i := range requests {
		if r := &requests[i]; r.Group != 0 || r.Limit != requests[0].Limit {
			return validateBuckets(requests)
		}
	}
	return nil
}

// validateBuckets checks that each bucket has one limit in the call, and each group different buckets.
func validateBuckets(requests []Request) error {
	type seen struct {
		limit Limit
		group int
	}
	buckets, ended := make(map[Bucket]seen, len(requests)), make(map[int]bool)
	for i := range requests {
		r := &requests[i]
		if i > 0 && r.Group != requests[i-1].Group {
			ended[requests[i-1].Group] = true
		}
		before, twice := buckets[r.Bucket()]
		switch {
		case r.Group != 0 && ended[r.Group]:
			return &RequestError{"Group", fmt.Sprintf("is %d: its requests must follow one another", r.Group)}
		case twice && before.limit != r.Limit:
			return &RequestError{"Limit", fmt.Sprintf("is %v and %v for the same key %q in one call: a bucket has one limit at a time (use another limiter name)", before.limit, r.Limit, r.Key)}
		case twice && r.Group != 0 && before.group == r.Group:
			return &RequestError{"Key", fmt.Sprintf("is %q twice in one group, for the limiter %q: ask for the sum of the tokens", r.Key, r.Limiter)}
		}
		buckets[r.Bucket()] = seen{r.Limit, r.Group}
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
