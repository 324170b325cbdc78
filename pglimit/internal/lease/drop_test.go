package lease_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit/internal/lease"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// drops are the two ways to take leases back.
var drops = map[string]func(context.Context, *lease.Leases) error{
	"one key": func(ctx context.Context, s *lease.Leases) error { return s.Drop(ctx, bucket("a")) },
	"all keys": func(ctx context.Context, s *lease.Leases) error {
		defer s.Pause(rate.Bucket{})()
		return s.Drop(ctx, rate.Bucket{})
	},
}

// When a lease was dropped nothing of it can be spent, it is settled, and for a hold there is
// no other: also where one was being fetched, and that takes long.
func TestADroppedLeaseIsSettled(t *testing.T) {
	t.Parallel()
	for name, drop := range drops {
		for _, fetching := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				s := &lender{lends: slowly(10 * time.Millisecond)}
				leases := s.leases(t)
				served := claims(t, leases, nil, 1)
				if !fetching {
					later(20 * time.Millisecond)
				}
				if err := drop(t.Context(), leases); err != nil {
					t.Error(err)
				}
				_, _, left := leases.Spend(request("a", 1))
				if last := s.asked()[len(s.asked())-1]; left || !slices.Equal(s.tokens(), []int64{5, 0}) || last.Settle.Tokens != 5 || last.Spent != 1 {
					t.Errorf("%s, fetching %t: some is left %t; asked %+v", name, fetching, left, s.asked())
				}
				s.becomes(nil)
				for range 10 {
					if _, served, err := ask(t.Context(), leases, "a", 1); served || err != nil {
						t.Fatalf("%s: leased again at once, %v", name, err)
					}
				}
				later(hold)
				busy(t, leases, "a")
				if served() != "y" {
					t.Errorf("%s, fetching %t: who waited is told %s", name, fetching, served())
				}
				closes(t, leases)
			})
		}
	}
}

// The wait for that ends with the context, and says so.
func TestDroppingALeaseThatCannotBeSettled(t *testing.T) {
	t.Parallel()
	for name, drop := range drops {
		synctest.Test(t, func(t *testing.T) {
			s := &lender{}
			leases := s.leases(t)
			busy(t, leases, "a")
			s.becomes(slowly(ttl / 2))
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			defer cancel()
			began := time.Now()
			if err := drop(ctx, leases); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 10*time.Millisecond {
				t.Errorf("%s: %v after %v", name, err, time.Since(began))
			}
			closes(t, leases)
		})
	}
}

// While all leases are dropped no key gets one, though it was not known before. Somebody else
// who drops them, too, and is done does not change that.
func TestNoKeyIsLeasedWhileAllAreDropped(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &lender{}
		leases := s.leases(t)
		defer closes(t, leases)
		resume, again := leases.Pause(rate.Bucket{}), leases.Pause(rate.Bucket{})
		if err := leases.Drop(t.Context(), rate.Bucket{}); err != nil {
			t.Error(err)
		}
		asks := func() {
			for range 20 {
				if _, served, err := ask(t.Context(), leases, "new", 1); served || err != nil {
					t.Fatal(served, err)
				}
			}
		}
		asks()
		resume()
		asks()
		again()
		later(hold)
		busy(t, leases, "new")
	})
}

// While the leases of a bucket are paused it gets none, but what it has is settled for a request that is
// too large for it, which must not be denied tokens that this process has. Others get theirs.
func TestWhileABucketIsPaused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &lender{}
		leases := s.leases(t)
		defer closes(t, leases)
		busy(t, leases, "a")
		resume := leases.Pause(bucket("a"))
		if _, served, err := ask(t.Context(), leases, "a", 1000); served || err != nil || s.asked()[len(s.asked())-1].Settle.Tokens != 5 {
			t.Errorf("served %t, %v; asked %+v", served, err, s.asked())
		}
		later(hold)
		for range 20 {
			if _, served, err := ask(t.Context(), leases, "a", 1); served || err != nil {
				t.Fatal(served, err)
			}
		}
		busy(t, leases, "b")
		resume()
		later(hold)
		busy(t, leases, "a")
	})
}

// A lease that has expired when Close comes need not be settled: Postgres counts it as spent.
// What nobody spent of it is missed, and Close says so.
func TestCloseAfterALeaseHasExpired(t *testing.T) {
	t.Parallel()
	for spent := int64(4); spent <= 5; spent++ {
		synctest.Test(t, func(t *testing.T) {
			s := &lender{lends: func(ctx context.Context, r rate.LeaseRequest) (rate.Lease, error) {
				l, err := lend(ctx, r)
				l.Until = l.At.Add(hold / 2) // before the keeper comes
				return l, err
			}}
			leases := s.leases(t)
			busy(t, leases, "a")
			for range spent - 1 {
				if _, served, _ := ask(t.Context(), leases, "a", 1); !served {
					t.Fatal("not served")
				}
			}
			later(hold / 2)
			if _, spent, left := leases.Spend(request("a", 1)); spent || left {
				t.Error("it has expired")
			}
			err := leases.Close(t.Context())
			if missed := errors.Is(err, context.DeadlineExceeded); missed != (spent < 5) || !missed && err != nil {
				t.Errorf("%d spent: %v", spent, err)
			}
			if n := leases.Stats.UnspentTokens.Load(); n != 5-spent || len(s.asked()) != 1 {
				t.Errorf("%d unspent, asked %+v", n, s.asked())
			}
		})
	}
}

// Two who close both wait until the leases are settled, the second no longer than its context.
func TestTwoClose(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &lender{}
		leases := s.leases(t)
		busy(t, leases, "a")
		s.becomes(slowly(10 * time.Millisecond))
		began := time.Now()
		go func() { _ = leases.Close(context.Background()) }()
		synctest.Wait()
		short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := leases.Close(short); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		if err := leases.Close(t.Context()); err != nil || time.Since(began) != 10*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// A settlement is over before what was denied meanwhile is forgotten: what is denied while it
// is under way must not stay.
func TestWhatWasDeniedIsForgottenAfterTheSettlement(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &lender{}
		leases := s.leases(t)
		busy(t, leases, "a")
		s.becomes(slowly(10 * time.Millisecond))
		go func() { _ = leases.Drop(context.Background(), bucket("a")) }()
		synctest.Wait()
		if n, _ := s.calls(); n != 1 || len(s.forgotten()) != 1 { // when it was leased
			t.Errorf("%d calls under way, forgot %q", n, s.forgotten())
		}
		later(10 * time.Millisecond)
		if !slices.Equal(s.forgotten(), []string{"a", "a"}) {
			t.Errorf("forgot %q", s.forgotten())
		}
		closes(t, leases)
	})
}

// A call that hangs is given up after the time that a lease lasts.
func TestALeaseCallDoesNotHang(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &lender{lends: slowly(time.Hour)}
		leases := s.leases(t)
		served := claims(t, leases, nil, 1)
		later(ttl - 1)
		if n, _ := s.calls(); n != 1 || served() != "" {
			t.Errorf("%d calls under way, %s", n, served())
		}
		later(1)
		if n, _ := s.calls(); n != 0 || served() != "n" {
			t.Errorf("%d calls under way, %s", n, served())
		}
		closes(t, leases)
	})
}

// What a grant says is what the bucket had besides the lease when that was made, and what is
// unspent, as old as it is; a peek adds what is unspent to what it saw, of the same lease.
func TestWhatAGrantSays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		s := &lender{lends: func(ctx context.Context, r rate.LeaseRequest) (rate.Lease, error) {
			l, err := lend(ctx, r)
			time.Sleep(time.Millisecond) // the way back
			token := limit.Token()
			l.Left = rate.Decision{Remaining: 90, ResetAfter: time.Duration(limit.Burst-90) * token, At: l.At}
			return l, err
		}}
		leases := s.leases(t)
		claims(t, leases, nil, 1)
		later(time.Millisecond)
		const passed = hold / 2
		const age = passed - passed/1024
		later(passed)
		unspent := leases.BeforePeek(bucket("a"))
		d, served, err := ask(t.Context(), leases, "a", 1)
		want := rate.Decision{
			Allowed: true, Granted: 1, Remaining: 93 + int64(age/limit.Token()), Source: rate.FromLease, At: begun.Add(age), Limit: limit,
			ResetAfter: time.Duration(limit.Burst-93)*limit.Token() - age,
		}
		if err != nil || !served || d != want {
			t.Errorf("%+v, %v\nwant %+v", d, err, want)
		}
		peek := func(remaining, unit int64) rate.Decision {
			r := rate.Request{Limiter: "test", Key: "a", Limit: limit, Unit: unit}
			return unspent(r, rate.Decision{Allowed: remaining >= unit, Remaining: remaining})
		}
		for _, test := range []struct {
			remaining, unit, want int64
			allowed               bool
		}{{0, 1, 3, true}, {0, 3, 3, true}, {0, 4, 3, false}, {10, 13, 13, true}} {
			if d := peek(test.remaining, test.unit); d.Remaining != test.want || d.Allowed != test.allowed {
				t.Errorf("%d left, %d wanted: %+v", test.remaining, test.unit, d)
			}
		}
		if err := leases.Drop(t.Context(), bucket("a")); err != nil {
			t.Error(err)
		}
		later(hold)
		claims(t, leases, nil, 1)
		later(time.Millisecond)
		if d := peek(0, 1); d.Remaining != 0 || d.Allowed {
			t.Errorf("of another lease: %+v", d)
		}
		unspent = leases.BeforePeek(bucket("a"))
		s.becomes(func(context.Context, rate.LeaseRequest) (rate.Lease, error) {
			time.Sleep(2 * ttl) // it cannot be settled before it expires
			return rate.Lease{}, errors.New("the server is down")
		})
		later(ttl)
		if d := peek(0, 1); d.Remaining != 0 || d.Allowed {
			t.Errorf("of one that has expired: %+v", d)
		}
		_ = leases.Close(t.Context())
	})
}
