package pglimit

import (
	"fmt"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Request asks a Limiter for Tokens of the bucket of a Key: see [Limiter.Do]. A [Strategy] gets a [rate.Request] for
// it. All but the Key may be left out.
type Request struct {
	// Key names for whom is limited, such as a user. UTF-8 without NUL, of at most MaxKeyBytes.
	Key string

	// Tokens that are wanted, in whole multiples of Unit. Zero is a peek, which takes nothing.
	Tokens int64

	// Unit: of 10 tokens in units of 2, 6 are granted from a bucket that has 7. Zero: all or nothing.
	Unit int64

	// Limit, such as that of a customer's plan. Zero: the Limiter's own.
	//
	// Each key has one bucket, whatever the limits: what was used under one limit is used under another. So use a key
	// under one limit at a time. For several limits on one key, such as one per second and one per day, give each a
	// Limiter name: see [Limiter.DoAll].
	Limit Limit

	// Limiter names what is limited, of at most MaxLimiterBytes. Empty: the Limiter's own name. [Limiter.Reset] and
	// [Limiter.ResetAll] are for that only: to reset a bucket of another name, make a Limiter of that name.
	Limiter string

	// MaxWait: Do waits for the tokens, as [Limiter.WaitN] does, but so long at most. DoAll waits for those of all
	// requests, for the shortest MaxWait of them. Each bucket reserves in the order in which Postgres was asked,
	// and all tokens may be used when the last are due. The others' buckets count theirs from when these were
	// there, and not from then on.
	//
	// A window of the calendar reserves nothing. If it is used up, or would end before the group is due, nothing is
	// taken. DoAll asks again after RetryAfter if that is not too long, in any order; Stats and OnDecision are told each
	// try. It does not hear of a Reset or a larger limit before that.
	//
	// Of a group that gives up, each bucket gets its tokens back, less what has refilled since they were there.
	MaxWait time.Duration

	// Ahead: tokens that come back within this time are granted too, and Decision.Delay says when they may be used.
	// They are taken now, so that nobody else gets them: see [rate.Request].
	Ahead time.Duration

	// ID names the request, with at most MaxIDBytes: it is charged once. If you send it again within [Config].IDTTL,
	// because its outcome was not known, it gets its first decision and is not charged again, also if the limit has
	// changed since (Decision.Limit is then the earlier one). A denial is not kept: the next try is decided again.
	//
	// An ID belongs to a key; make one for each request, such as a UUID. If it was granted another number of tokens
	// before, the error is a [*RequestError]. A Reset forgives tokens and keeps IDs. What [Config].OnError decides is
	// not kept. The request costs a round trip: it is neither combined nor answered by a lease or the memory of
	// denials.
	ID string

	// Durability: the stronger of this and the Limiter's.
	Durability Durability
}

// alone refuses requests that want to wait with others.
func alone(requests []Request) error {
	for i := range requests {
		if longest := requests[i].MaxWait; longest != 0 {
			return &IndexError{i, &RequestError{Field: "MaxWait", Why: fmt.Sprintf("is %v: of several requests only those of a group can wait: see Do and DoAll", longest)}}
		}
	}
	return nil
}

// asked are the requests as they go through the stages.
func asked(requests []Request) []rate.Request {
	all := make([]rate.Request, len(requests))
	for i := range requests {
		all[i] = requests[i].asked()
	}
	return all
}

// asked is the request as it goes through the stages: not complete yet, and without MaxWait.
func (r *Request) asked() rate.Request {
	return rate.Request{
		Limiter: r.Limiter, Key: r.Key, Limit: r.Limit, Tokens: r.Tokens, Unit: r.Unit,
		Durability: r.Durability, Ahead: r.Ahead, ID: r.ID,
	}
}

// told is the request as hooks get it: complete.
func told(r *rate.Request) Request {
	return Request{
		Key: r.Key, Tokens: r.Tokens, Unit: r.Unit, Limit: r.Limit, Limiter: r.Limiter,
		Ahead: r.Ahead, ID: r.ID, Durability: r.Durability,
	}
}
