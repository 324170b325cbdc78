package pglimittest

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/pglimit/ratelimit/internal/bucket"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Strategy decides in memory. It can do everything that strategies.TokenBucket can. Make one with
// [Memory] or [MemoryOn]; limiters that share it share their buckets as they would in a database.
// It is safe for concurrent use.
//
// It ignores the session, which may be nil, and Durability and Impatient of a request.
type Strategy struct {
	clock func() time.Time

	mu      sync.Mutex
	moved   time.Duration // by Advance
	failure error
	buckets map[rate.Bucket]bucket.Row
	answers map[id]answer
	denied  map[rate.Bucket]denied
}

var (
	_ rate.GiveBacker  = (*Strategy)(nil)
	_ rate.Resetter    = (*Strategy)(nil)
	_ rate.AllResetter = (*Strategy)(nil)
	_ rate.Sweeper     = (*Strategy)(nil)
	_ rate.Leaser      = (*Strategy)(nil)
)

// Memory returns a strategy without buckets. Its clock stands at midnight, January 1, 2000, UTC,
// until [Strategy.Advance] moves it.
func Memory() *Strategy {
	start := time.Date(2000, time.January, 1, 0, 0, 0, 0, time.UTC)
	return MemoryOn(func() time.Time { return start })
}

// MemoryOn is Memory with a clock of yours, between the years 1970 and 2060; Advance still moves
// it further. It must not call the Strategy.
//
// With time.Now, inside a bubble of testing/synctest, the strategy's clock and that of the
// limiter's stages are the same. There a test can have the limiter that runs in production:
//
//	synctest.Test(t, func(t *testing.T) {
//		memory := pglimittest.MemoryOn(time.Now)
//		limiter, err := pglimit.New(memory.Pool(), memory, config)
//		defer limiter.Close(t.Context())
//		// … time.Sleep moves all clocks
//	})
func MemoryOn(clock func() time.Time) *Strategy {
	return &Strategy{
		clock:   clock,
		buckets: make(map[rate.Bucket]bucket.Row), answers: make(map[id]answer), denied: make(map[rate.Bucket]denied),
	}
}

// Now is the time of the clock, in UTC, to the microsecond, as in Decision.At.
func (s *Strategy) Now() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now()
}

func (s *Strategy) now() time.Time {
	return s.clock().Add(s.moved).Truncate(time.Microsecond).UTC()
}

// Advance moves the clock by d: forward, or back if d is negative, as a database's clock may
// step.
func (s *Strategy) Advance(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.moved += d
}

// Fail makes every further call fail with err, until Fail(nil). A call that fails takes nothing.
// [rate.ErrUnavailable] is what a limiter gets from a server that is down,
// context.DeadlineExceeded from one that does not answer in time.
func (s *Strategy) Fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failure = err
}

var (
	earliest = time.Unix(0, 0).AddDate(0, 0, 1)
	latest   = time.Date(2060, time.January, 1, 0, 0, 0, 0, time.UTC) // 200 years, the longest window, still fit
)

// locked calls f with the time in nanoseconds since 1970. Nobody else reads or changes the
// buckets meanwhile.
func (s *Strategy) locked(ctx context.Context, f func(nowNS int64) error) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("pglimittest: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failure != nil {
		return s.failure
	}
	now := s.now()
	if now.Before(earliest) || now.After(latest) {
		return fmt.Errorf("pglimittest: the clock is at %v: it must be between the years 1970 and 2060", now)
	}
	return f(now.UnixNano())
}

// keep writes a bucket, if it has changed.
func (s *Strategy) keep(n rate.Bucket, before, after bucket.Row) {
	if after != before {
		s.buckets[n] = after
	}
}

// Name is memory.
func (*Strategy) Name() string { return "memory" }

// Check takes any request whose time zone Go knows. A window of the calendar gives nothing back before its end, so
// nothing can be taken ahead of that.
func (*Strategy) Check(r *rate.Request) error {
	if r.Limit.Calendar == "" {
		return nil
	}
	if r.Ahead > 0 {
		return rate.ErrAheadInCalendar
	}
	_, err := r.Limit.WindowEnd(time.Time{})
	return err
}

// Rule is that of a token bucket.
func (*Strategy) Rule() rate.Rule { return bucket.Rule{} }
