package lease_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	rule "github.com/pglimit/ratelimit/internal/bucket"
	"github.com/pglimit/ratelimit/pglimit/internal/lease"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// ttl of the leases here. A hold is a tenth of it.
const (
	ttl  = time.Second
	hold = ttl / 10
)

var limit = rate.PerHour(1_000_000)

// lender is what Leases call: it lends what is asked for, as the test says, and remembers.
// What happens at the test's time is not ordered for the race detector: hence the lock.
type lender struct {
	lends   func(ctx context.Context, request rate.LeaseRequest) (rate.Lease, error)
	relaxed bool // the leases are, else durable

	mu       sync.Mutex // also of lends, once there are leases
	requests []rate.LeaseRequest
	forgot   []string
	underWay int
	most     int // calls under way at once
}

// lend what is asked for, at once.
func lend(_ context.Context, r rate.LeaseRequest) (rate.Lease, error) {
	now := time.Now()
	return rate.Lease{Tokens: r.Tokens, At: now, Until: now.Add(r.TTL)}, nil
}

func (l *lender) leases(t *testing.T) *lease.Leases {
	t.Helper()
	durability := rate.Durable
	if l.relaxed {
		durability = rate.Relaxed
	}
	s, err := lease.New(lease.Config{Durability: durability, TTL: ttl}, lease.Calls{
		Rule: rule.Rule{},
		Lease: func(ctx context.Context, request rate.LeaseRequest) (rate.Lease, error) {
			lends := l.begin(request)
			defer l.end()
			return lends(ctx, request)
		},
		Forget: func(bucket rate.Bucket) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.forgot = append(l.forgot, bucket.Key)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (l *lender) begin(request rate.LeaseRequest) (lends func(context.Context, rate.LeaseRequest) (rate.Lease, error)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requests = append(l.requests, request)
	l.underWay++
	l.most = max(l.most, l.underWay)
	if l.lends == nil {
		return lend
	}
	return l.lends
}

func (l *lender) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.underWay--
}

// becomes one that lends like this from now on; nil: what is asked for, at once.
func (l *lender) becomes(lends func(context.Context, rate.LeaseRequest) (rate.Lease, error)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lends, l.most = lends, 0
}

// asked is what each call asked for.
func (l *lender) asked() []rate.LeaseRequest {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.requests)
}

// forgotten are the keys of which Forget was told.
func (l *lender) forgotten() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.forgot)
}

// calls under way now, and the most that were at once.
func (l *lender) calls() (now, most int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.underWay, l.most
}

// tokens that were asked for, by each call.
func (l *lender) tokens() (tokens []int64) {
	for _, r := range l.asked() {
		tokens = append(tokens, r.Tokens)
	}
	return tokens
}

func bucket(key string) rate.Bucket { return rate.Bucket{Limiter: "test", Key: key} }

func request(key string, tokens int64) *rate.Request {
	return &rate.Request{Limiter: "test", Key: key, Limit: limit, Tokens: tokens, Unit: max(tokens, 1)}
}

// ask as a Limiter does: first what is leased, then for a lease. served: Postgres need not be
// asked.
func ask(ctx context.Context, s *lease.Leases, key string, tokens int64) (d rate.Decision, served bool, err error) {
	r := request(key, tokens)
	if d, spent, _ := s.Spend(r); spent {
		return d, true, nil
	}
	return s.Fetch(ctx, r)
}

// busy makes the key busy: the last request fetches a lease, and is served out of it.
func busy(t *testing.T, s *lease.Leases, key string) {
	t.Helper()
	for i := range 5 {
		_, served, err := ask(t.Context(), s, key, 1)
		if err != nil || served != (i == 4) {
			t.Fatalf("request %d of %s: served %t, %v", i, key, served, err)
		}
	}
	synctest.Wait()
}

// closes settles everything, as at the end of a test.
func closes(t *testing.T, s *lease.Leases) {
	t.Helper()
	if err := s.Close(context.Background()); err != nil {
		t.Error(err)
	}
}

// later waits for so long by the test's clock, and until what happens then has happened.
func later(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}
