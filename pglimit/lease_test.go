package pglimit_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
)

// bank is a strategy with leases, as package strategies documents them, in memory. Its
// clock is that of the test. Debt is counted in time: a token is what is refilled in
// Period / Tokens.
type bank struct {
	fake
	latency   atomic.Int64  // time.Duration
	fails     error         // of Lease
	expired   bool          // are its leases when they come
	resetting time.Duration // how long a reset takes

	mu     sync.Mutex
	debt   time.Duration
	at     time.Time
	leased int64
	until  time.Time

	trips   int
	settled []int64 // spent, of each lease that was settled
	resets  []int64 // set aside at that time
}

func newBank() *bank {
	b := &bank{at: time.Now()}
	b.latency.Store(int64(time.Millisecond))
	b.take = b.decide
	return b
}

// travel is one way to the server.
func (b *bank) travel(ctx context.Context) error {
	return travel(ctx, time.Duration(b.latency.Load()))
}

func perToken(l pglimit.Limit) time.Duration { return l.Period / time.Duration(l.Tokens) }

// settle brings the account to the present.
func (b *bank) settle(l pglimit.Limit) {
	drain := func(to time.Time) {
		if to.After(b.at) {
			b.debt, b.at = max(0, b.debt-to.Sub(b.at)), to
		}
	}
	now := time.Now()
	if b.leased > 0 && !now.Before(b.until) {
		drain(b.until)
		b.debt += time.Duration(b.leased) * perToken(l)
		b.leased = 0
	}
	drain(now)
}

func (b *bank) setAside() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.leased
}

func (b *bank) left(l pglimit.Limit) int64 {
	return l.Burst - b.leased - int64((b.debt+perToken(l)-1)/perToken(l))
}

func (b *bank) decide(ctx context.Context, requests []pglimit.Request) ([]pglimit.Decision, error) {
	if err := b.travel(ctx); err != nil {
		return nil, err
	}
	decisions := b.grant(requests)
	return decisions, b.travel(ctx)
}

func (b *bank) grant(requests []pglimit.Request) []pglimit.Decision {
	b.mu.Lock()
	defer b.mu.Unlock()
	decisions := make([]pglimit.Decision, len(requests))
	for i, r := range requests {
		b.settle(r.Limit)
		granted := min(r.Tokens, max(0, b.left(r.Limit))) / r.Unit * r.Unit
		b.debt += time.Duration(granted) * perToken(r.Limit)
		decisions[i] = pglimit.Decision{Allowed: granted > 0, Granted: granted, Remaining: b.left(r.Limit), At: b.at}
		if r.Tokens == 0 {
			decisions[i].Allowed = b.left(r.Limit) >= r.Unit
		}
	}
	return decisions
}

func (b *bank) Lease(ctx context.Context, _ pglimit.Session, r pglimit.LeaseRequest) (pglimit.Lease, error) {
	if err := b.travel(ctx); err != nil {
		return pglimit.Lease{}, err
	}
	defer time.Sleep(time.Duration(b.latency.Load()))
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fails != nil {
		return pglimit.Lease{}, b.fails
	}
	b.trips++
	b.settle(r.Limit)
	if r.Settle.Tokens > 0 && b.at.Before(r.Settle.Until) {
		b.leased -= r.Settle.Tokens
		b.debt += time.Duration(r.Spent) * perToken(r.Limit)
		b.settled = append(b.settled, r.Spent)
	}
	lease := pglimit.Lease{At: b.at, Until: b.at.Add(r.TTL)}
	if r.Tokens > 0 {
		lease.Tokens = min(r.Tokens, max(0, b.left(r.Limit))/r.Share)
		b.leased += lease.Tokens
		if b.until.Before(lease.Until) {
			b.until = lease.Until
		}
	}
	lease.Left = pglimit.Decision{Remaining: b.left(r.Limit), ResetAfter: b.debt + time.Duration(b.leased)*perToken(r.Limit)}
	if b.expired {
		lease.Until = lease.At
	}
	return lease, ctx.Err()
}

func (b *bank) Reset(context.Context, pglimit.Session, string, string) error {
	time.Sleep(b.resetting)
	time.Sleep(time.Duration(b.latency.Load()))
	defer time.Sleep(time.Duration(b.latency.Load()))
	b.mu.Lock()
	defer b.mu.Unlock()
	b.resets = append(b.resets, b.leased)
	b.debt, b.leased = 0, 0
	return nil
}

// leasing has leases and combining, and no memory, and can be closed in the end.
func leasing(t *testing.T, strategy pglimit.Strategy, limit pglimit.Limit) *pglimit.Limiter {
	t.Helper()
	limiter := newLimiter(t, strategy, func(c *pglimit.Config) { c.Leases.On, c.Combine.Off, c.Limit = true, false, limit })
	t.Cleanup(func() {
		if err := limiter.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return limiter
}

// load asks every gap for so long, each request in a goroutine of its own, and returns how
// many were allowed.
func load(t *testing.T, limiter *pglimit.Limiter, gap, length time.Duration) (allowed int64) {
	t.Helper()
	var mu sync.Mutex
	var work sync.WaitGroup
	for range length / gap {
		work.Go(func() {
			d, err := limiter.Allow(t.Context(), "a")
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			allowed += d.Granted
			mu.Unlock()
		})
		time.Sleep(gap)
	}
	work.Wait()
	return allowed
}

func TestABusyKeyIsLeased(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		limiter := leasing(t, b, pglimit.PerSecond(1000))
		allowed := load(t, limiter, 2*time.Millisecond, 5*time.Second) // 500/s
		stats := limiter.Stats()
		if allowed != 2500 || stats.Allowed[pglimit.FromLease]+decided(stats) != 2500 {
			t.Errorf("%d of 2,500 were allowed: %+v", allowed, stats)
		}
		// A lease is made to last 100 ms, and to be a quarter of what is left at most.
		if stats.Allowed[pglimit.FromLease] < 2400 || stats.LeaseTrips > 100 {
			t.Errorf("%+v", stats)
		}
		if err := limiter.Close(t.Context()); err != nil {
			t.Error(err)
		}
		stats = limiter.Stats()
		if used := stats.LeasedTokens - stats.UnspentTokens; used != stats.Allowed[pglimit.FromLease] {
			t.Errorf("%d tokens of leases for %d requests", used, stats.Allowed[pglimit.FromLease])
		}
		if n := b.setAside(); n != 0 {
			t.Errorf("%d tokens are set aside still", n)
		}
	})
}

func TestCloseSaysWhichLeasesItCouldNotGiveBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		limiter := leasing(t, b, pglimit.PerSecond(1000))
		load(t, limiter, time.Millisecond, time.Second)
		b.mu.Lock()
		b.fails = errDown
		b.mu.Unlock()
		err := limiter.Close(t.Context())
		if !errors.Is(err, errDown) || !strings.HasPrefix(err.Error(), "pglimit: 1 leases could not be given back, their tokens are missed for up to 1s: ") {
			t.Error(err)
		}
		if _, err := limiter.Allow(t.Context(), "a"); !errors.Is(err, pglimit.ErrClosed) {
			t.Error(err)
		}
		if err := limiter.Close(t.Context()); err != nil {
			t.Error("again:", err)
		}
	})
}

// What has to be durable asks Postgres, and gets all that is there: also what the lease, which
// is relaxed, had set aside.
func TestWhatHasToBeDurableIsNotSpentFromALease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		limiter := leasing(t, b, perHour(60))
		left := 60 - load(t, limiter, time.Millisecond, 12*time.Millisecond)
		if b.setAside() == 0 {
			t.Fatal("there is no lease")
		}
		leased := limiter.Stats().LeasedTokens
		for ; left > 0; left-- {
			decisions, err := limiter.DoEach(t.Context(), pglimit.Request{Key: "a", Tokens: 1, Durability: pglimit.Durable})
			if err != nil || !decisions[0].Allowed || decisions[0].Source != pglimit.FromDatabase {
				t.Fatalf("with %d left: %+v, %v", left, decisions, err)
			}
			if last := b.taken[len(b.taken)-1]; last[0].Durability != pglimit.Durable {
				t.Errorf("sent %+v", last)
			}
		}
		if n := limiter.Stats().LeasedTokens; n != leased {
			t.Errorf("%d tokens were leased for them", n-leased)
		}
	})
}
