// Package lease fetches tokens of busy keys in advance, and spends them without asking.
package lease

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/maypok86/otter/v2"

	"github.com/pglimit/ratelimit/pglimit/internal/skew"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

const (
	// leaseShare: a lease is at most one in so many of the tokens left, so that there
	// is always something for others.
	leaseShare = 4

	// holds per TTL: a lease is made to last so long that it is settled, and the
	// next one measured by it, well before it expires.
	holds = 10

	// busy is how many requests a key must have in a hold before it is leased.
	busy = 5

	// growth of a lease over the one before at most, so that a moment's burst does not
	// set aside what nobody needs.
	growth = 4

	leasedKeys = 1 << 16

	// maxLeaseCalls under way at once: the rest of the pool's connections are for those who
	// ask Postgres.
	maxLeaseCalls = 4
)

// Config of Leases: whose tokens they are, and for how long at most they are set aside.
type Config struct {
	Limiter    string
	Limit      rate.Limit
	Durability rate.Durability
	TTL        time.Duration
}

// Calls are what Leases call.
type Calls struct {
	// Lease asks the strategy.
	Lease func(ctx context.Context, request rate.LeaseRequest) (rate.Lease, error)

	// Forget what was denied while tokens of the key were set aside.
	Forget func(key string)
}

// Stats of Leases.
type Stats struct {
	Trips         atomic.Int64 // calls that fetched or settled a lease
	LeasedTokens  atomic.Int64 // that were set aside
	UnspentTokens atomic.Int64 // of those, that were given back or expired
}

// Leases spends tokens that were fetched in advance. None (nil): it is switched off.
//
// A key that is busy gets a lease: a number of tokens that Postgres has set aside for
// this process, for Config.TTL at most, and that it spends without asking, first come first
// served. When it is spent, has been idle for a hold, or is about to expire, it is settled:
// what is unspent goes back to the bucket.
//
// Never over: while tokens are set aside nobody else has them and they are not refilled,
// and after the TTL, which this process counts from before the lease was made, Postgres
// counts them as spent. How far under: what is set aside, at most a quarter of the tokens
// left, is denied to other processes for as long as it is neither spent nor settled.
type Leases struct {
	Stats Stats

	config Config
	calls  Calls
	start  time.Time
	keys   *otter.Cache[string, *holder]

	mu      sync.Mutex
	closed  bool
	paused  int                  // while it is not zero, no lease is taken
	settled chan struct{}        // closed at the end of Close
	active  map[*holder]struct{} // those that may have a lease
	keeping bool                 // the keeper's goroutine runs
	running sync.WaitGroup       // fetches and the keeper
	slots   chan struct{}        // one for each call under way
	ctx     context.Context      // of them all
	cancel  context.CancelFunc
}

// holder is a key's lease, or the lack of one.
type holder struct {
	key string

	// The lease, as spent by callers: without a lock.
	unspent atomic.Int64
	terms   atomic.Pointer[terms]

	mu       sync.Mutex
	fetching *fetch        // under way: nobody begins another
	from     time.Duration // beginning of the hold in which requests are counted
	requests int           // in this hold, that found no lease
	pause    time.Duration // no lease is asked for before this time
	withheld int64         // of a lease that cannot stay: unspent, and not to be spent; the fetch's own
	seen     *terms        // the lease when the keeper last looked
	rest     int64         // and what was unspent of it
}

// terms of a lease.
type terms struct {
	rate.Lease
	asked time.Duration // when it was asked for, since the start
	got   time.Duration // when it came
	until time.Duration // it must not be spent from here on
}

// New Leases.
func New(config Config, calls Calls) (*Leases, error) {
	keys, err := otter.New(&otter.Options[string, *holder]{
		MaximumSize: leasedKeys,
		Executor:    func(task func()) { task() }, // no goroutines
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &Leases{
		config: config, calls: calls, keys: keys, start: time.Now(),
		settled: make(chan struct{}), slots: make(chan struct{}, maxLeaseCalls), active: make(map[*holder]struct{}), ctx: ctx, cancel: cancel,
	}, nil
}

func (s *Leases) now() time.Duration  { return time.Since(s.start) }
func (s *Leases) hold() time.Duration { return s.config.TTL / holds }

// Spend answers a request out of the key's lease, if so many tokens are left of it. If not,
// it says whether any are.
func (s *Leases) Spend(request *rate.Request) (decision rate.Decision, spent, left bool) {
	if s == nil {
		return rate.Decision{}, false, false
	}
	h, known := s.keys.GetIfPresent(request.Key)
	if !known {
		return rate.Decision{}, false, false
	}
	if decision, spent = h.spend(request, s.now); spent {
		return decision, true, true
	}
	return rate.Decision{}, false, h.spendable(s.now()) > 0
}

// spendable is what is unspent of a lease that has not expired.
func (h *holder) spendable(now time.Duration) int64 {
	if terms := h.terms.Load(); terms == nil || now >= terms.until {
		return 0
	}
	return h.unspent.Load()
}

// BeforePeek is called before a peek is sent. What it returns adds to the decision what is
// unspent, if that is the same lease by then: it is what this process's next request gets.
func (s *Leases) BeforePeek(key string) func(rate.Request, rate.Decision) rate.Decision {
	asIs := func(_ rate.Request, d rate.Decision) rate.Decision { return d }
	if s == nil {
		return asIs
	}
	h, known := s.keys.GetIfPresent(key)
	if !known {
		return asIs
	}
	terms := h.terms.Load()
	return func(request rate.Request, decision rate.Decision) rate.Decision {
		if terms == nil || terms != h.terms.Load() || s.now() >= terms.until {
			return decision
		}
		decision = decision.Plus(h.unspent.Load(), &request)
		decision.Allowed = decision.Remaining >= request.Unit
		return decision
	}
}

// spend takes the tokens out of the lease, if they are in it.
func (h *holder) spend(request *rate.Request, now func() time.Duration) (rate.Decision, bool) {
	n := request.Tokens
	if n == 0 || h.unspent.Load() < n {
		return rate.Decision{}, false
	}
	terms, at := h.terms.Load(), now()
	if terms == nil || at >= terms.until {
		return rate.Decision{}, false
	}
	left := h.unspent.Load()
	for ; left >= n; left = h.unspent.Load() {
		if h.unspent.CompareAndSwap(left, left-n) {
			if next := h.terms.Load(); next != nil && next != terms {
				terms, at = next, next.got // meanwhile there was another, of which these tokens are
			}
			return terms.decision(request, left-n, at), true
		}
	}
	return rate.Decision{}, false
}

// decision of a grant out of the lease. What the bucket has besides it is as it was when
// the lease was made. Its time is rather too early than too late: between the making of a
// lease and its settlement any is right, but after that the tokens are the bucket's.
func (t *terms) decision(request *rate.Request, unspent int64, now time.Duration) rate.Decision {
	age := skew.AtLeast(now - t.got)
	d := t.Left
	d.ResetAfter = max(0, d.ResetAfter-age)
	d.At = t.At.Add(age)
	d = d.Plus(unspent, request)
	d.Allowed, d.Granted, d.Source = true, request.Tokens, rate.FromLease
	return d
}
