package rate

import (
	"context"
	"time"
)

// Strategy decides in Postgres. The package strategies has four; strategytest, a
// conformance suite that any other can be held against.
//
// What more a strategy can do is a capability, an interface of its own: [GiveBacker],
// [Resetter], [AllResetter], [Sweeper], [Leaser].
//
// A Strategy has no state of its own and is safe for concurrent use.
type Strategy interface {
	// Name in lower case with underscores, as in ByName and on the command line.
	Name() string

	// Check says whether the strategy can keep the limit, which is valid: nil, or
	// a *LimitError.
	Check(limit Limit) error

	// Take decides the requests and answers in their order. Only Postgres's clock
	// counts. Requests for different buckets may come in any order and do not
	// deadlock with other calls; requests for the same bucket are decided in the
	// order given, and have one limit. The call is one transaction: an error that is ErrNothingTaken means
	// that nothing was taken and that asking for each bucket alone may help; any other
	// from Postgres, that nothing was taken; one from the connection, that nobody knows.
	//
	// A denial and a peek write nothing and leave nothing locked that another take would wait
	// for, unless the tokens went to another call between the look and the lock.
	Take(ctx context.Context, session Session, requests []Request) ([]Decision, error)
}

// GiveBacker is a [Strategy] to which tokens can be given back. To one that is none, what was
// granted to callers who have left stays charged.
type GiveBacker interface {
	Strategy

	// GiveBack returns tokens that were granted and not used, see [Refund]. One
	// transaction; refunds may come in any order.
	GiveBack(ctx context.Context, session Session, refunds []Refund) error
}

// Resetter is a [Strategy] that can forgive a key.
type Resetter interface {
	Strategy

	// Reset fills the bucket. Resetting one that is full does nothing. A take that read
	// the clock before may be dated some milliseconds before the reset that it followed.
	Reset(ctx context.Context, session Session, limiter, key string) error
}

// Sweeper is a [Strategy] that leaves rows behind, and can remove them.
type Sweeper interface {
	Strategy

	// Sweep removes rows of buckets that have been full for a minute, so that no
	// future decision changes (unless the database's clock steps back by more than
	// that). It looks at about limit rows, in one short transaction, never waits
	// for a locked row, and says where to go on.
	Sweep(ctx context.Context, session Session, from Cursor, limit int) (Swept, error)
}

// Refund is what [GiveBacker.GiveBack] returns to a bucket: Request.Tokens of what was
// granted to the Request at the time At, which is that of its Decision.
//
// Never over comes first: while the tokens were out, time may have refilled the bucket
// in their stead, and then they are not to be had twice. So of Tokens, what is refilled
// between At and now is left out. A bucket whose last write was under another limit gets
// nothing back. (A Reset between the grant and the refund forgives on top: the row does not
// know of it once the key has taken again.)
type Refund struct {
	Request
	At time.Time
}

// Leaser is a Strategy that can set tokens aside for one process, which then spends
// them without asking.
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

	// Tokens wanted, at most one in Share of those left: of 90 left, Share 3 gives 30,
	// rounded down. Zero tokens: only settle.
	Tokens, Share int64

	// TTL of the lease at most, at least a millisecond. What is not settled by its end
	// counts as spent then.
	TTL time.Duration

	// Settle is an earlier lease that ends with this call, Spent how much of it was
	// spent; the zero Lease if there is none. The rest goes back to the bucket. One that
	// has expired, or whose bucket was reset since, is settled already and left alone. A
	// lease is settled once: twice would give back what others hold.
	Settle Lease
	Spent  int64
}

// Lease is a number of tokens that a bucket has set aside: nobody else can take them,
// and they are not refilled, until they are settled or expire.
type Lease struct {
	Tokens int64

	// At is the database's clock when the lease was made; Until when it expires, which
	// is sooner than the TTL if other leases of the bucket are out. The holder, who has no
	// such clock, counts the time between the two from when it sent the request.
	At, Until time.Time

	// Left is the bucket after the call, as a peek for one token would see it.
	Left Decision
}

// Cursor is a place in a walk over a strategy's table. Only [Sweeper.Sweep]
// knows what it means; 0 is the beginning.
type Cursor int64

// Swept is what one [Sweeper.Sweep] did.
type Swept struct {
	Removed int64
	Next    Cursor // where to go on
	Done    bool   // there is nothing behind Next
}

// AllResetter is a [Strategy] that can fill all buckets of a limiter.
type AllResetter interface {
	Strategy

	// ResetAll fills every bucket of the limiter. A bucket that is taken from meanwhile
	// is full at some moment between the beginning and the end.
	//
	// It works in short transactions, unless in one of the caller's: an error leaves those that were
	// reset before it full. It waits for rows that others hold when all others are
	// reset, as long as ctx lets it.
	//
	// It returns how many rows it removed, also with an error: one for each bucket that
	// had been taken from and not swept since, or as many as the strategy keeps.
	ResetAll(ctx context.Context, session Session, limiter string) (int64, error)
}
