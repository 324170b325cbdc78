package rate

import (
	"context"
	"fmt"
	"time"
)

// Reserver is a [Strategy] whose Take obeys [Request].Ahead: it grants tokens before they are
// there, in the order in which it is asked, and never more than come back in that time.
type Reserver interface {
	Strategy

	// TakesAhead does nothing: to have it is to be a Reserver.
	TakesAhead()
}

// GroupTaker is a [Strategy] that takes from several buckets all or nothing.
type GroupTaker interface {
	Strategy

	// TakeGroups decides groups of requests, in the order given, in one transaction, and returns
	// the decisions in the same shape. A group is granted if all of its requests can be. If
	// not, nothing is taken for it, and nothing written; Allowed of its decisions then says
	// which of its buckets had the tokens, and Granted is zero.
	//
	// The requests of a group are for different buckets, all or nothing, without Ahead or ID.
	// Several groups may ask for the same bucket, under the same limit. Everything else is as
	// for [Strategy].Take.
	//
	// A call for several groups is always impatient, except in a transaction of the caller's. A
	// call for one group is so if one of its requests is Impatient; else it waits for rows that
	// somebody else holds locked, and locks none of the others meanwhile. An impatient call that
	// gives up returns a [*HeldError], if it can say which rows are held.
	TakeGroups(ctx context.Context, session Session, groups [][]Request) ([][]Decision, error)
}

// OnceTaker is a [Strategy] that charges a request once, however often it is sent.
type OnceTaker interface {
	Strategy

	// TakeOnce is Take for a request with an ID. If that ID was granted tokens of the same bucket
	// within the ttl before, it returns that first decision and takes nothing. A denial is not
	// kept: the next try is decided anew. An ID that was granted another number of tokens is a
	// *RequestError. If the limit has changed since the grant, the decision is still the first one,
	// and its Limit is that of the grant: at the same rate with the same burst, though it may be
	// written in other words. Else its Limit is zero, as of any decision of a Strategy.
	TakeOnce(ctx context.Context, session Session, request Request, ttl time.Duration) (Decision, error)
}

// Blocker is a [Strategy] that blocks keys which are denied too often.
type Blocker interface {
	Strategy

	// TakeOrBlock is Take for one request that is all or nothing, without Ahead or ID. It counts
	// denials, and blocks the key by the rules of block. Looking a block up, counting and
	// deciding are one round trip. A denial of a blocked key writes nothing. A peek says
	// whether the key is blocked, and counts nothing.
	TakeOrBlock(ctx context.Context, session Session, request Request, block Block) (Decision, error)
}

// Block says when a key that is denied again and again is blocked, and for how long. The
// zero Block blocks nobody.
//
// Denials are counted in spans of Within; a span begins with the first denial after the one
// before. After denials in one span block the key. While it is blocked, nothing is counted.
type Block struct {
	// After is how many denials within Within block the key. At least 1.
	After  int64
	Within time.Duration

	// For is how long the first block lasts. Each further block lasts twice as long as the one
	// before, up to Max. A key that has not been blocked for Forget, counted from the end of its
	// last block, begins with For again. Zero Forget: each block lasts For.
	For, Max, Forget time.Duration
}

// MaxBlock is the longest Within, For, Max and Forget of a [Block]: 10 years.
const MaxBlock = 10 * 365 * 24 * time.Hour

// Validate returns a [*BlockError] that names the field, its value and what is allowed, or nil.
func (b Block) Validate() error {
	bad := func(field string, value any, why string, args ...any) error {
		return &BlockError{b, field, fmt.Sprintf("is %v: it must be "+why, append([]any{value}, args...)...)}
	}
	switch {
	case b.After < 1:
		return bad("After", b.After, "at least 1")
	case b.Within <= 0 || b.Within > MaxBlock:
		return bad("Within", b.Within, "positive, and at most %v", MaxBlock)
	case b.For <= 0 || b.For > MaxBlock:
		return bad("For", b.For, "positive, and at most %v", MaxBlock)
	case b.Max < b.For || b.Max > MaxBlock:
		return bad("Max", b.Max, "from For, %v, to %v", b.For, MaxBlock)
	case b.Forget < 0 || b.Forget > MaxBlock:
		return bad("Forget", b.Forget, "from 0 to %v", MaxBlock)
	}
	return nil
}
