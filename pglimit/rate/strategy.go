package rate

import (
	"context"
	"time"
)

// Strategy decides in Postgres. Package strategies has seven. Package strategytest has a
// conformance suite for any other.
//
// Everything else that a strategy may be able to do has an interface of its own:
// [GiveBacker], [Resetter], [AllResetter], [Sweeper], [Leaser].
//
// A Strategy has no state of its own and is safe for concurrent use.
type Strategy interface {
	// Name in lower case with underscores, as in ByName and on the command line.
	Name() string

	// Check returns nil if the strategy can decide such a request: a *LimitError if it cannot keep
	// the limit; and if it does not know Ahead, Group, ID or Block of the request, an error that
	// says so and satisfies errors.Is(err, errors.ErrUnsupported). The limit is valid; other
	// fields may be missing.
	Check(request *Request) error

	// Rule is how its buckets fill. A token bucket has that of the strategies in package strategies:
	// it may return strategies.TokenBucket{}.Rule().
	Rule() Rule

	// Take decides the requests and returns the decisions in the same order. Only
	// Postgres's clock counts. Requests for different buckets may come in any order and
	// do not deadlock with other calls. Requests for the same bucket have the same limit
	// and are decided in the order given. Groups, IDs and blocks are as [Request] says. The
	// caller uses the requests again after the call: Take keeps a copy of what it keeps.
	//
	// The call is one transaction: after an error from Postgres nothing was taken. If the
	// error is ErrNothingTaken, asking for each bucket alone may help. After an error of
	// the connection, nobody knows what was taken.
	//
	// A peek, and a denial that need not be counted, write nothing, and leave no lock that another take would wait
	// for, unless another call took the tokens between the look and the lock.
	//
	// So Take validates its requests ([ValidateCall]), locks buckets in one order
	// (by key, then limiter, bytewise), and, where the session does not autocommit, works in a
	// savepoint that an error undoes (for a single request it need not: the error may abort the
	// transaction). It returns ErrNothingTaken for lock timeouts,
	// serialization failures and deadlocks, gives up waiting for a locked row as Impatient
	// says, and commits as Durability says. An impatient call that gives up returns a *HeldError
	// if it can say which rows are held. A call for one group waits for rows unless one of its
	// requests is Impatient, and locks none of the others meanwhile. strategytest tells what is
	// missing.
	Take(ctx context.Context, session Session, requests []Request) ([]Decision, error)
}

// GiveBacker is a [Strategy] that takes tokens back. With any other strategy, tokens that were
// granted to callers who had left stay charged.
type GiveBacker interface {
	Strategy

	// GiveBack returns tokens that were granted and not used, see [Refund]. It is one
	// transaction, or one for each refund if somebody else holds one of the rows locked.
	// Refunds may come in any order.
	GiveBack(ctx context.Context, session Session, refunds []Refund) error
}

// Resetter is a [Strategy] that can forgive a key.
type Resetter interface {
	Strategy

	// Reset fills the bucket, and ends a block of the key. It does not forget IDs. Resetting a full bucket does
	// nothing. A take that follows the reset may have read the clock before it, and be dated some milliseconds
	// earlier.
	Reset(ctx context.Context, session Session, limiter, key string) error
}

// Pauser is a [Strategy] that can grant nobody tokens of a bucket for a time.
type Pauser interface {
	Strategy

	// Pause grants nobody tokens of the bucket, under any limit, before length has passed by the database's clock, from
	// the call on. Then there is one token, and the others come back behind it. A take that may reserve takes behind
	// it. A pause that lasts longer stays as it is, and Reset ends it. Pause returns for how long others may still grant
	// out of leases. length is positive, and at most [MaxBlock].
	Pause(ctx context.Context, session Session, limiter, key string, length time.Duration, durability Durability) (leased time.Duration, err error)

	// Paused is for how long from now on the bucket is paused; zero: it is not.
	Paused(ctx context.Context, session Session, limiter, key string) (time.Duration, error)
}

// Sweeper is a [Strategy] that can remove the rows that it no longer needs.
type Sweeper interface {
	Strategy

	// Sweep removes rows of buckets that have been full for a minute. That changes no
	// later decision, unless the database's clock steps back by more than a minute. It also
	// removes IDs that have been free, and blocks that have been forgotten, for a minute.
	// Sweep looks at about limit rows, in one short transaction, never waits for a
	// locked row, and says where to go on.
	Sweep(ctx context.Context, session Session, from Cursor, limit int) (Swept, error)
}

// Refund is what [GiveBacker.GiveBack] returns to a bucket: Request.Tokens of the tokens that
// were granted to the Request; if not all, the last of them. At and Delay are those of the
// Decision that granted them. They were due at At + Delay.
//
// The bucket gets Tokens minus what was refilled since they were due: a full bucket would have
// discarded that refill, so crediting both would exceed the limit. For the same reason minus what
// others have reserved behind them, since nobody moves up (see [Request].Ahead). It gets nothing if
// its last write was at another rate. (If the key was reset since the grant and has taken again,
// the refund comes on top of the reset, which the row no longer shows. Likewise, if the clock has
// stepped back by less than the time since the grant, and the key has taken before and after the
// step, tokens that were refilled in as much time as the step are given back, too.)
//
// The ID of a granted Request stays charged: if it is sent again within the ttl, it gets its first
// decision, and the tokens are used though they were given back.
type Refund struct {
	Request
	At    time.Time
	Delay time.Duration
}

// Leaser is a [Strategy] that can set tokens aside for one process, which then spends
// them without asking Postgres.
type Leaser interface {
	Strategy

	// Lease settles an earlier lease and takes a new one of the same bucket, in one
	// transaction.
	Lease(ctx context.Context, session Session, request LeaseRequest) (Lease, error)
}

// LeaseRequest asks a [Leaser] to set tokens aside.
type LeaseRequest struct {
	// Limiter, Key, Limit and Durability name the bucket as in a [Request].
	Limiter, Key string
	Limit        Limit
	Durability   Durability

	// Tokens is how many are wanted. The lease gets at most 1/Share of the tokens left,
	// rounded down: with 90 left and Share 3, at most 30. Zero Tokens: only settle.
	Tokens, Share int64

	// TTL is how long the lease lasts at most. From a millisecond to an hour. A lease that is
	// not settled by its end counts as spent.
	TTL time.Duration

	// Settle is an earlier lease that ends with this call, or the zero Lease. Spent is how
	// many of its tokens were spent; the rest goes back to the bucket. A lease that has
	// expired, or whose bucket was reset since, is left alone. So is one during which the
	// database's clock stepped back: it counts as spent. Settle each lease once: a second time
	// would give back tokens that others have leased.
	Settle Lease
	Spent  int64
}

// Lease is a number of tokens that a bucket has set aside: nobody else can take them,
// and they are not refilled, until they are settled or expire.
type Lease struct {
	Tokens int64

	// At is the database's clock when the lease was made, Until when it expires: sooner
	// than the TTL if the bucket has other leases. The holder cannot read that clock, so it
	// counts the time from At to Until from the moment when it sent the request.
	At, Until time.Time

	// Left is what a peek for one token would see after the call.
	Left Decision
}

// Cursor is a place in a walk over a strategy's table. Only [Sweeper.Sweep]
// knows what it means; 0 is the beginning.
type Cursor int64

// Swept is what one [Sweeper.Sweep] did.
type Swept struct {
	Removed int64
	Next    Cursor // where to go on
	Done    bool   // there is nothing after Next
}

// AllResetter is a [Strategy] that can fill all buckets of a limiter.
type AllResetter interface {
	Strategy

	// ResetAll fills every bucket of the limiter, and ends blocks, as Reset does. A bucket that
	// is taken from meanwhile is full at some moment between the beginning and the end.
	//
	// It works in short transactions, unless it is called in one of the caller's. After an
	// error, the buckets that were reset before it stay full. Rows that somebody else holds
	// locked come last; ResetAll waits for them until ctx ends.
	//
	// It returns how many rows it removed, also with an error: one, or as many as the
	// strategy keeps, for each bucket that was taken from and not swept since.
	ResetAll(ctx context.Context, session Session, limiter string) (int64, error)
}
