package pglimit_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/internal/bucket"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies/strategytest/model"
)

// reserving is a strategy in memory that obeys Ahead and takes refunds, by the model's rule and
// the test's clock. A call takes as long as latency says.
type reserving struct {
	latency time.Duration

	mu      sync.Mutex
	buckets map[string]*model.Bucket
	calls   [][]pglimit.Request
	refunds [][]pglimit.Refund
	down    error // every call fails with it
}

func newReserving() *reserving { return &reserving{buckets: map[string]*model.Bucket{}} }

func (*reserving) Name() string       { return "reserving" }
func (*reserving) Rule() pglimit.Rule { return bucket.Rule{} }

func (*reserving) Check(r *pglimit.Request) error {
	but := *r
	but.Ahead = 0
	return rate.Unsupported("reserving", &but)
}

func (s *reserving) of(key string) *model.Bucket {
	if s.buckets[key] == nil {
		s.buckets[key] = new(model.Bucket)
	}
	return s.buckets[key]
}

func modelled(l pglimit.Limit) model.Limit { return model.NewLimit(l.Tokens, l.Period, l.Burst) }

func (s *reserving) Take(ctx context.Context, _ pglimit.Session, requests []pglimit.Request) ([]pglimit.Decision, error) {
	if err := travel(ctx, s.latency); err != nil {
		return nil, err
	}
	decisions, err := s.decide(requests)
	if err != nil {
		return nil, err
	}
	return decisions, travel(ctx, s.latency)
}

func (s *reserving) decide(requests []pglimit.Request) ([]pglimit.Decision, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, slices.Clone(requests))
	if s.down != nil {
		return nil, s.down
	}
	now := time.Now()
	decisions := make([]pglimit.Decision, len(requests))
	for i, r := range requests {
		b, l := s.of(r.Key), modelled(r.Limit)
		var granted, delay int64
		if r.Tokens > 0 {
			granted, delay = b.TakeAhead(now.UnixNano(), l, r.Tokens, r.Unit, int64(r.Ahead))
		}
		report := b.Report(now.UnixNano(), l, max(r.Unit, 1))
		decisions[i] = pglimit.Decision{
			Allowed: granted > 0 || r.Tokens == 0 && report.Remaining >= r.Unit, Granted: granted, Delay: time.Duration(delay),
			Remaining: report.Remaining, RetryAfter: report.RetryAfter, ResetAfter: report.ResetAfter, At: now.UTC(),
		}
	}
	return decisions, nil
}

func (s *reserving) GiveBack(_ context.Context, _ pglimit.Session, refunds []pglimit.Refund) error {
	time.Sleep(s.latency)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refunds = append(s.refunds, slices.Clone(refunds))
	if s.down != nil {
		return s.down
	}
	for _, r := range refunds {
		s.of(r.Key).Refund(time.Now().UnixNano(), modelled(r.Limit), r.Tokens, r.At.UnixNano(), int64(r.Delay))
	}
	return nil
}

// owes is how many tokens the bucket owes now, in thousandths.
func (s *reserving) owes(key string, limit pglimit.Limit) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(0, s.of(key).Full-time.Now().UnixNano()) * 1000 / int64(limit.Token())
}

// waiting is a Limiter of 10/s, burst 1, with every stage that is on by default.
func waiting(t *testing.T, s pglimit.Strategy, change func(*pglimit.Config)) *pglimit.Limiter {
	t.Helper()
	limiter, err := pglimit.New(noDB{}, s, config(func(c *pglimit.Config) {
		c.Combine.Off, c.Memory.Off, c.Breaker.Off = false, false, true
		c.Limit = pglimit.PerSecond(10).WithBurst(1)
		if change != nil {
			change(c)
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	return limiter
}

// near says whether a time is the one wanted, or at most 0.2 % later, by which clocks may differ.
func near(got, want time.Duration) bool {
	return got >= want && got <= want+want/500+time.Microsecond
}
