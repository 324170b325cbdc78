// Package lease fetches tokens of busy buckets in advance, and spends them without asking Postgres.
package lease

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/maypok86/otter/v2"

	"github.com/pglimit/ratelimit/internal/bucket"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

const (
	// leaseShare: a lease has at most a quarter of the tokens left, so that there are
	// always some for others.
	leaseShare = 4

	// holds is how many holds a TTL has. A lease is sized to be spent in one hold, so that
	// it is settled, and the next one sized by it, well before it expires.
	holds = 10

	// busy is how many requests a bucket must have in a hold before it is leased.
	busy = 5

	// growth: a lease is at most this many times the lease before, so that a short burst
	// does not set aside tokens that nobody needs.
	growth = 4

	leasedBuckets = 1 << 16

	// maxLeaseCalls may be under way at once. The pool's other connections are for requests
	// that ask Postgres.
	maxLeaseCalls = 4
)

// Config of Leases: how durable they are, and how long at most their tokens are set aside.
type Config struct {
	Durability rate.Durability
	TTL        time.Duration
}

// Calls are what Leases call.
type Calls struct {
	// Lease asks the strategy.
	Lease func(ctx context.Context, request rate.LeaseRequest) (rate.Lease, error)

	// Rule is the strategy's: it says what the answer about a lease means later.
	Rule rate.Rule

	// Forget drops what the memory of denials knows of the bucket.
	Forget func(bucket rate.Bucket)
}

// Stats of Leases.
type Stats struct {
	Trips         atomic.Int64 // calls that fetched or settled a lease
	LeasedTokens  atomic.Int64 // tokens that were set aside
	UnspentTokens atomic.Int64 // leased tokens that were given back or expired
}

// Leases spends tokens that were fetched in advance. If nil, the stage is switched off.
//
// A busy bucket gets a lease: a number of tokens that Postgres sets aside for this process, for
// Config.TTL at most. The process spends them without asking, first come, first served. When
// the lease is spent, has been idle for a hold, or is about to expire, it is settled: the
// unspent tokens go back to the bucket.
//
// The limit holds: while tokens are set aside, nobody else gets them and they are not refilled.
// After the TTL, which this process counts from before the lease was made, Postgres counts
// them as spent. The price: other processes are denied the tokens set aside, at most a quarter
// of those left, until they are spent or settled.
//
// A lease serves requests under one limit, that of the request for which it was fetched. A
// request under another limit settles it and asks Postgres.
type Leases struct {
	Stats Stats

	config Config
	calls  Calls
	start  time.Time
	known  *otter.Cache[rate.Bucket, *holder]

	mu      sync.Mutex
	closed  bool
	paused  map[rate.Bucket]int  // no lease of these is taken; of none, if the zero Bucket is one
	settled chan struct{}        // closed at the end of Close
	active  map[*holder]struct{} // the holders that may have a lease
	keeping bool                 // the keeper's goroutine runs
	running sync.WaitGroup       // fetches and the keeper
	slots   chan struct{}        // one for each call under way
	ctx     context.Context      // of all calls
	cancel  context.CancelFunc
}

// holder is a bucket's lease, or the lack of one.
type holder struct {
	bucket rate.Bucket
	terms  atomic.Pointer[terms] // of the lease; nil if there is none

	mu       sync.Mutex
	fetching *fetch        // the fetch under way; there is only one at a time
	from     time.Duration // beginning of the hold in which requests are counted
	requests int           // requests in this hold that found no lease
	pause    time.Duration // no lease is asked for before this time
	withheld int64         // unspent tokens of a lease that cannot stay; only the fetch uses it
	seen     *terms        // the lease when the keeper last looked
	rest     int64         // how many of its tokens were unspent then
}

// terms are the terms of a lease, and what is left of it.
type terms struct {
	rate.Lease
	limit   rate.Limit
	rule    rate.Rule
	unspent atomic.Int64 // callers spend it without a lock

	asked time.Duration // when it was asked for, since the start
	got   time.Duration // when it came
	until time.Duration // it must not be spent from here on
}

// New Leases.
func New(config Config, calls Calls) (*Leases, error) {
	known, err := otter.New(&otter.Options[rate.Bucket, *holder]{
		MaximumSize: leasedBuckets,
		Executor:    func(task func()) { task() }, // no goroutines
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &Leases{
		config: config, calls: calls, known: known, start: time.Now(),
		settled: make(chan struct{}), slots: make(chan struct{}, maxLeaseCalls), active: make(map[*holder]struct{}), paused: make(map[rate.Bucket]int), ctx: ctx, cancel: cancel,
	}, nil
}

func (s *Leases) now() time.Duration  { return time.Since(s.start) }
func (s *Leases) hold() time.Duration { return s.config.TTL / holds }

// Spend answers a request out of the bucket's lease if it has the same limit and enough tokens
// left, and is none of a group. If not, left says whether the lease has any.
func (s *Leases) Spend(request *rate.Request) (decision rate.Decision, spent, left bool) {
	if s == nil {
		return rate.Decision{}, false, false
	}
	h, known := s.known.GetIfPresent(request.Bucket())
	if !known {
		return rate.Decision{}, false, false
	}
	if request.Group == 0 && !s.tooDurable(request) {
		if decision, spent = h.spend(request, s.now); spent {
			return decision, true, true
		}
	}
	terms := h.terms.Load()
	return rate.Decision{}, false, terms != nil && s.now() < terms.until && terms.unspent.Load() > 0
}

// tooDurable says that the grant has to outlast more than the lease does.
func (s *Leases) tooDurable(request *rate.Request) bool {
	return request.Durability > s.config.Durability
}

// BeforePeek is called before a peek is sent. It returns a function that adds the lease's
// unspent tokens, which this process's next request can get, to the decision. If the lease
// has been replaced or has expired by then, it adds none.
func (s *Leases) BeforePeek(bucket rate.Bucket) func(rate.Request, rate.Decision) rate.Decision {
	asIs := func(_ rate.Request, d rate.Decision) rate.Decision { return d }
	if s == nil {
		return asIs
	}
	h, known := s.known.GetIfPresent(bucket)
	if !known {
		return asIs
	}
	terms := h.terms.Load()
	return func(request rate.Request, decision rate.Decision) rate.Decision {
		if terms == nil || terms != h.terms.Load() || s.now() >= terms.until {
			return decision
		}
		decision.Limit = request.Limit
		decision = s.calls.Rule.Later(decision, request.Unit, request.Unit, 0, terms.unspent.Load())
		decision.Allowed = decision.Remaining >= request.Unit
		return decision
	}
}

// spend takes the tokens of the request out of the lease, if it has enough.
func (h *holder) spend(request *rate.Request, now func() time.Duration) (rate.Decision, bool) {
	terms, n := h.terms.Load(), request.Tokens
	if terms == nil || n == 0 || terms.unspent.Load() < n || terms.limit != request.Limit {
		return rate.Decision{}, false
	}
	at := now()
	if at >= terms.until {
		return rate.Decision{}, false
	}
	for left := terms.unspent.Load(); left >= n; left = terms.unspent.Load() {
		if terms.unspent.CompareAndSwap(left, left-n) {
			return terms.decision(request, left-n, at), true
		}
	}
	return rate.Decision{}, false
}

// decision of a grant out of the lease. It shows the rest of the bucket as if nobody else had taken from
// it since the lease was made. At is rather too early than too late: any time between the making and the settling of
// the lease is right, but none after.
func (t *terms) decision(request *rate.Request, unspent int64, now time.Duration) rate.Decision {
	d := t.Left
	d.At, d.Limit = t.At, t.limit
	d = t.rule.Later(d, 1, request.Unit, bucket.AtLeast(now-t.got), unspent)
	d.Allowed, d.Granted, d.Source = true, request.Tokens, rate.FromLease
	if unspent+request.Tokens == t.Tokens {
		d.Lease = &t.Lease
	}
	return d
}
