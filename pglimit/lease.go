package pglimit

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/maypok86/otter/v2"
)

const (
	defaultLeaseTTL = time.Second
	minLeaseTTL     = 10 * time.Millisecond
	maxLeaseTTL     = 10 * time.Second

	// leaseShare: a lease is at most one in so many of the tokens left, so that there
	// is always something for others.
	leaseShare = 4

	// holds per LeaseTTL: a lease is made to last so long that it is settled, and the
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

// leases spends tokens that were fetched in advance.
//
// A key that is busy gets a lease: a number of tokens that Postgres has set aside for
// this process, for LeaseTTL at most, and that it spends without asking, first come first
// served. When it is spent, has been idle for a hold, or is about to expire, it is settled:
// what is unspent goes back to the bucket.
//
// Never over: while tokens are set aside nobody else has them and they are not refilled,
// and after LeaseTTL, which this process counts from before the lease was made, Postgres
// counts them as spent. How far under: what is set aside, at most a quarter of the tokens
// left, is denied to other processes for as long as it is neither spent nor settled.
type leases struct {
	limiter *Limiter
	leaser  Leaser
	ttl     time.Duration
	start   time.Time
	keys    *otter.Cache[string, *holder]

	mu      sync.Mutex
	closed  bool
	paused  int                  // while it is not zero, no lease is taken
	settled chan struct{}        // closed at the end of close
	active  map[*holder]struct{} // those that may have a lease
	keeping bool                 // the keeper's goroutine runs
	running sync.WaitGroup       // fetches and the keeper
	joined  int                  // callers who have claims, until they have answers
	drained chan struct{}        // closed when there are none after close
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
	Lease
	asked time.Duration // when it was asked for, since the start
	got   time.Duration // when it came
	until time.Duration // it must not be spent from here on
}

func newLeases(l *Limiter) (*leases, error) {
	keys, err := otter.New(&otter.Options[string, *holder]{
		MaximumSize: leasedKeys,
		Executor:    func(task func()) { task() }, // no goroutines
	})
	if err != nil {
		return nil, err
	}
	leaser, _ := l.strategy.(Leaser) // validated
	ctx, cancel := context.WithCancel(context.Background())
	return &leases{
		limiter: l, leaser: leaser, keys: keys, start: time.Now(),
		ttl:     orDefault(l.config.LeaseTTL, defaultLeaseTTL),
		settled: make(chan struct{}), drained: make(chan struct{}), slots: make(chan struct{}, maxLeaseCalls), active: make(map[*holder]struct{}), ctx: ctx, cancel: cancel,
	}, nil
}

func (s *leases) now() time.Duration  { return time.Since(s.start) }
func (s *leases) hold() time.Duration { return s.ttl / holds }

// spending is the stage that answers from a lease. Who wants more than is left of it is
// asking Postgres, past the memory: that knows nothing of what this process has.
func (s *leases) spending(next, asking decide) decide {
	return func(ctx context.Context, request Request) (Decision, error) {
		h, known := s.keys.GetIfPresent(request.Key)
		if !known {
			return next(ctx, request)
		}
		if request.Tokens == 0 {
			return s.peek(ctx, h, request, next)
		}
		if decision, spent := h.spend(&request, s.now); spent {
			s.limiter.counters.leased.add()
			return decision, nil
		}
		if h.spendable(s.now()) > 0 {
			return asking(ctx, request)
		}
		return next(ctx, request)
	}
}

// spendable is what is unspent of a lease that has not expired.
func (h *holder) spendable(now time.Duration) int64 {
	if terms := h.terms.Load(); terms == nil || now >= terms.until {
		return 0
	}
	return h.unspent.Load()
}

// peek counts what is unspent as there: it is what this process's next request gets.
func (s *leases) peek(ctx context.Context, h *holder, request Request, next decide) (Decision, error) {
	terms := h.terms.Load()
	decision, err := next(ctx, request)
	if err != nil || terms == nil || terms != h.terms.Load() || s.now() >= terms.until {
		return decision, err
	}
	decision = decision.Plus(h.unspent.Load(), &request)
	decision.Allowed = decision.Remaining >= request.Unit
	return decision, nil
}

// spend takes the tokens out of the lease, if they are in it.
func (h *holder) spend(request *Request, now func() time.Duration) (Decision, bool) {
	n := request.Tokens
	if n == 0 || h.unspent.Load() < n {
		return Decision{}, false
	}
	terms, at := h.terms.Load(), now()
	if terms == nil || at >= terms.until {
		return Decision{}, false
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
	return Decision{}, false
}

// decision of a grant out of the lease. What the bucket has besides it is as it was when
// the lease was made. Its time is rather too early than too late: between the making of a
// lease and its settlement any is right, but after that the tokens are the bucket's.
func (t *terms) decision(request *Request, unspent int64, now time.Duration) Decision {
	age := atLeast(now - t.got)
	d := t.Left
	d.ResetAfter = max(0, d.ResetAfter-age)
	d.At = t.At.Add(age)
	d = d.Plus(unspent, request)
	d.Allowed, d.Granted = true, request.Tokens
	return d
}
