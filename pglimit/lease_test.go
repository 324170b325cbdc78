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
	"github.com/pglimit/ratelimit/pglimit/rate"
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

func (b *bank) decide(ctx context.Context, requests []rate.Request) ([]pglimit.Decision, error) {
	if err := b.travel(ctx); err != nil {
		return nil, err
	}
	decisions := b.grant(requests)
	return decisions, b.travel(ctx)
}

func (b *bank) grant(requests []rate.Request) []pglimit.Decision {
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

// makeBusy makes the key busy: the fifth request asks for a lease.
func makeBusy(t *testing.T, limiter *pglimit.Limiter) {
	t.Helper()
	for range 5 {
		go func() { _, _ = limiter.Allow(t.Context(), "a") }()
	}
	synctest.Wait()
}

// perHour is a limit of tokens that do not flow back while a test runs.
func perHour(tokens int64) pglimit.Limit { return pglimit.PerHour(tokens) }

func TestALeaseIsNotInTheWayOfItsOwnProcess(t *testing.T) {
	t.Parallel()
	for _, latency := range []time.Duration{0, time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			b := newBank()
			b.latency.Store(int64(latency))
			limiter := leasing(t, b, perHour(1000))
			spent := load(t, limiter, time.Millisecond, 300*time.Millisecond)
			if b.setAside() == 0 {
				t.Fatal("there is no lease")
			}
			d, err := limiter.Peek(t.Context(), "a")
			if err != nil || !d.Allowed || d.Remaining != 1000-spent {
				t.Errorf("peek after %d tokens: %+v, %v", spent, d, err)
			}
			d, err = limiter.AllowN(t.Context(), "a", 1000-spent)
			if err != nil || !d.Allowed || d.Remaining != 0 {
				t.Errorf("all that is left after %d tokens: %+v, %v", spent, d, err)
			}
		})
	}
}

func TestAResetTakesTheLeaseBackFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		b.resetting = 300 * time.Millisecond // for longer than a dropped lease is not taken again
		limiter := leasing(t, b, perHour(100_000))
		var work sync.WaitGroup
		work.Go(func() { load(t, limiter, 100*time.Microsecond, 2*time.Second) })
		time.Sleep(500 * time.Millisecond)
		if b.setAside() == 0 {
			t.Fatal("there is no lease")
		}
		for range 5 {
			if err := limiter.Reset(t.Context(), "a"); err != nil {
				t.Error(err)
			}
			time.Sleep(3 * time.Millisecond)
		}
		work.Wait()
		for _, tokens := range b.resets {
			if tokens != 0 {
				t.Errorf("set aside when it was reset: %d", b.resets)
			}
		}
		if len(b.resets) != 5 {
			t.Error(b.resets)
		}
	})
}

// What is denied while tokens are set aside is not denied any more when they come back.
func TestAnUnspentLeaseEndsTheMemoryOfADenial(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		limit := perHour(1000)
		one := newLimiter(t, b, func(c *pglimit.Config) { c.Leases.On, c.Combine.Off, c.Memory.Off, c.Limit = true, false, false, limit })
		var denies atomic.Bool
		denies.Store(true)
		b.take = func(ctx context.Context, requests []rate.Request) ([]pglimit.Decision, error) {
			if denies.Load() {
				_ = b.travel(ctx)
				return answer(pglimit.Decision{RetryAfter: time.Hour})(ctx, requests)
			}
			return b.decide(ctx, requests)
		}
		for range 5 { // the fifth finds its key busy, and is leased
			go func() { _, _ = one.AllowN(t.Context(), "a", 2) }()
		}
		time.Sleep(50 * time.Millisecond)
		denies.Store(false)
		if b.setAside() == 0 {
			t.Fatalf("there is no lease: %+v", one.Stats())
		}
		// What is left of it is not denied to its own process, whatever the memory knows, and
		// who wants more is not denied either.
		for _, tokens := range []int64{2, 2} {
			if d, err := one.AllowN(t.Context(), "a", tokens); err != nil || !d.Allowed {
				t.Errorf("%+v, %v, %+v", d, err, one.Stats())
			}
		}
		time.Sleep(300 * time.Millisecond) // it is idle, and settled
		if d, err := one.AllowN(t.Context(), "a", 2); err != nil || !d.Allowed {
			t.Errorf("%+v, %v", d, err)
		}
		if err := one.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// slow is a context that takes its time to say whether it has ended.
type slow struct{ context.Context }

func (s slow) Err() error {
	time.Sleep(time.Millisecond)
	return s.Context.Err()
}

// Who waited for a lease when Close began has an answer, however long it takes from there
// to its lane.
func TestCloseAnswersThoseWhoWaitForALease(t *testing.T) {
	t.Parallel()
	for _, alone := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) { closeWhileALeaseIsFetched(t, alone) })
	}
}

// alone: without combining.
func closeWhileALeaseIsFetched(t *testing.T, alone bool) {
	b := newBank()
	b.latency.Store(int64(10 * time.Millisecond))
	limiter := newLimiter(t, b, func(c *pglimit.Config) { c.Leases.On, c.Combine.Off, c.Limit = true, alone, perHour(8) })
	if _, err := limiter.AllowN(t.Context(), "a", 2); err != nil {
		t.Fatal(err)
	}
	if _, err := limiter.AllowN(t.Context(), "a", 2); err != nil {
		t.Fatal(err)
	}
	if _, err := limiter.Allow(t.Context(), "a"); err != nil { // three are left: too few for a lease
		t.Fatal(err)
	}
	var work sync.WaitGroup
	for range 20 {
		work.Go(func() {
			if _, err := limiter.Allow(slow{t.Context()}, "a"); err != nil {
				t.Error(err)
			}
		})
	}
	time.Sleep(5 * time.Millisecond)
	if err := limiter.Close(t.Context()); err != nil {
		t.Error(err)
	}
	work.Wait()
	if stats := limiter.Stats(); stats.LeaseTrips == 0 {
		t.Errorf("nobody waited for a lease: %+v", stats)
	}
}
