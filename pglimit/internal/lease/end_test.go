package lease_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// underWay are the goroutines in functions of this package's, but for tests.
func underWay() (found []string) {
	buffer := make([]byte, 1<<20)
	for stack := range strings.SplitSeq(string(buffer[:runtime.Stack(buffer, true)]), "\n\n") {
		if strings.Contains(stack, "internal/lease.(*Leases)") {
			found = append(found, stack)
		}
	}
	return found
}

// When Close returns there is neither a keeper nor a fetch, nor a call of the strategy's:
// whether there was a lease to settle, one was being fetched, or one was being settled by the
// keeper; and with all the time it wants, or none.
//
// Not parallel: it looks at all goroutines. And each many times: who is left is gone soon.
func TestCloseReturnsWhenNoGoroutineIsLeft(t *testing.T) {
	for name, test := range map[string]struct {
		wait time.Duration
	}{
		"a lease":                 {wait: time.Millisecond},
		"one that is idle":        {wait: 2*hold + time.Microsecond},
		"none, but a keeper":      {wait: 2*hold + 50*time.Millisecond},
		"one that is just wanted": {wait: 0},
	} {
		for round := range 50 {
			synctest.Test(t, func(t *testing.T) {
				var calls atomic.Int64
				s := &lender{lends: func(ctx context.Context, r rate.LeaseRequest) (rate.Lease, error) {
					calls.Add(1)
					defer calls.Add(-1)
					select {
					case <-time.After(100 * time.Microsecond):
					case <-ctx.Done():
						time.Sleep(time.Millisecond) // it takes its time to end
						return rate.Lease{}, ctx.Err()
					}
					return lend(ctx, r)
				}}
				leases := s.leases(t)
				for range 5 {
					go func() { _, _, _ = ask(context.Background(), leases, "a", 1) }()
					synctest.Wait()
				}
				time.Sleep(test.wait)
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				if round%2 == 1 {
					cancel()
				}
				_ = leases.Close(ctx)
				if n := calls.Load(); n != 0 {
					t.Errorf("%s: %d calls are under way", name, n)
				}
				for _, stack := range underWay() {
					if !strings.Contains(stack, ").ask") && !strings.Contains(stack, ".Fetch(") { // a caller's
						t.Fatalf("%s: left is\n%s", name, stack)
					}
				}
			})
		}
	}
}

// Close with its time over says so, of each lease that it could not give back, and does not
// wait for the strategy's answer.
func TestCloseWithoutTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &lender{lends: func(ctx context.Context, r rate.LeaseRequest) (rate.Lease, error) {
			if r.Tokens == 0 {
				<-ctx.Done()
				return rate.Lease{}, ctx.Err()
			}
			return lend(ctx, r)
		}}
		leases := s.leases(t)
		busy(t, leases, "a")
		busy(t, leases, "b")
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		began := time.Now()
		err := leases.Close(ended)
		if took := time.Since(began); took != 0 {
			t.Errorf("took %v", took)
		}
		if !errors.Is(err, context.Canceled) || !strings.HasPrefix(err.Error(), "pglimit: 2 leases could not be given back") {
			t.Error(err)
		}
		if err := leases.Close(t.Context()); err != nil {
			t.Error("again:", err)
		}
	})
}

// A lease that is being settled when Close gives up is one that could not be given back.
func TestCloseDuringASettlement(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &lender{}
		leases := s.leases(t)
		busy(t, leases, "a")
		s.becomes(slowly(time.Hour))
		later(2*hold + time.Millisecond) // it is idle
		if n, _ := s.calls(); n != 1 {
			t.Fatalf("%d calls under way", n)
		}
		ctx, cancel := context.WithTimeout(t.Context(), hold/2)
		defer cancel()
		if err := leases.Close(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.HasPrefix(err.Error(), "pglimit: 1 leases could not be given back") {
			t.Error(err)
		}
	})
}

// With the last lease its keeper ends too, though nobody calls Close.
func TestTheKeeperEndsWithTheLastLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		busy(t, (&lender{}).leases(t), "a")
		later(5 * hold)
	}) // which fails if a goroutine is left
}
