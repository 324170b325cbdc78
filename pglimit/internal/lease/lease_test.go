package lease_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// A lease is at most four times as large as the one before, however fast that was spent; and
// of the one before it counts what was lent, not what was spent of it. Its first grant, and no other, tells of it.
func TestALeaseGrowsFourfoldAtMost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &lender{}
		leases := s.leases(t)
		defer closes(t, leases)
		busy(t, leases, "a")
		firsts := map[int64]int64{5: 20, 5 + 20: 80, 5 + 20 + 80: 320}
		for spent := int64(1); spent < 5+20+80+1; spent++ {
			d, served, err := ask(t.Context(), leases, "a", 1)
			if !served || err != nil {
				t.Fatalf("after %d: %t, %v", spent, served, err)
			}
			if want := firsts[spent]; (d.Lease != nil) != (want > 0) || want > 0 && d.Lease.Tokens != want {
				t.Errorf("after %d: %+v, want %d", spent, d.Lease, want)
			}
		}
		if want := []int64{5, 20, 80, 320}; !slices.Equal(s.tokens(), want) {
			t.Fatalf("leases of %d, want %d", s.tokens(), want)
		}
		// Of 320, 1 + 199 are spent when 130 are wanted: 2,000 in a hold, at this speed.
		for _, tokens := range []int64{199, 130} {
			if _, served, err := ask(t.Context(), leases, "a", tokens); !served || err != nil {
				t.Fatalf("%d: %t, %v", tokens, served, err)
			}
		}
		if last := s.asked()[len(s.asked())-1]; last.Tokens != 4*320 || last.Spent != 200 {
			t.Errorf("asked for %d, with %d spent", last.Tokens, last.Spent)
		}
	})
}

// Where little is spent in a hold a lease has five tokens all the same: with fewer, a key
// that is just about busy would be asked for at each request.
func TestALeaseHasAtLeastWhatMakesAKeyBusy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &lender{}
		leases := s.leases(t)
		defer closes(t, leases)
		busy(t, leases, "a")
		for range 10 { // two in a hold
			later(hold / 2)
			if _, served, err := ask(t.Context(), leases, "a", 1); !served || err != nil {
				t.Fatal(served, err)
			}
		}
		for _, tokens := range s.tokens() {
			if tokens != 5 {
				t.Fatalf("leases of %d", s.tokens())
			}
		}
		if n := len(s.tokens()); n != 3 { // for 1 + 10 requests
			t.Errorf("%d leases", n)
		}
	})
}

// However many keys are busy, four calls at most fetch leases at once, and as many do: also
// while all are settled in the end.
func TestFewLeaseCallsAreUnderWayAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &lender{lends: func(ctx context.Context, r rate.LeaseRequest) (rate.Lease, error) {
			time.Sleep(time.Millisecond)
			return lend(ctx, r)
		}}
		leases := s.leases(t)
		for key := range 20 {
			for range 5 {
				go func() { _, _, _ = ask(t.Context(), leases, fmt.Sprint(key), 1) }()
			}
		}
		later(10 * time.Millisecond)
		if _, most := s.calls(); most != 4 || len(s.asked()) != 20 {
			t.Errorf("%d calls were under way at once, of %d", most, len(s.asked()))
		}
		s.becomes(s.lends)
		closes(t, leases)
		if _, most := s.calls(); most != 4 || len(s.asked()) != 40 {
			t.Errorf("when it was closed, %d calls were under way at once, of %d", most, len(s.asked()))
		}
	})
}

// What is asked for is the limiter's, with the durability that it was configured with.
func TestWhatALeaseIsAskedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &lender{}
		leases := s.leases(t)
		busy(t, leases, "a")
		closes(t, leases)
		whose := rate.LeaseRequest{Limiter: "test", Key: "a", Limit: limit, Durability: rate.Durable, Share: 4, TTL: ttl}
		first, last := whose, whose
		first.Tokens = 5
		last.Settle, last.Spent = rate.Lease{Tokens: 5, At: time.Now(), Until: time.Now().Add(ttl)}, 1
		if want := []rate.LeaseRequest{first, last}; !slices.Equal(s.asked(), want) {
			t.Errorf("asked %+v\nwant  %+v", s.asked(), want)
		}
		if !slices.Equal(s.forgotten(), []string{"a", "a"}) { // each changes what is left
			t.Errorf("forgot %q", s.forgotten())
		}
		stats := &leases.Stats
		if trips, leased, unspent := stats.Trips.Load(), stats.LeasedTokens.Load(), stats.UnspentTokens.Load(); trips != 2 || leased != 5 || unspent != 4 {
			t.Errorf("%d trips, %d leased, %d unspent", trips, leased, unspent)
		}
	})
}

// A lease is spent for as long as it lasts, less a thousandth for clocks that run apart, counted from when it was asked
// for. No keeper comes in time to end it: that is as if the process had been stopped meanwhile.
func TestALeaseIsNotSpentAfterItsEnd(t *testing.T) {
	t.Parallel()
	const lasts = hold * 8 / 10
	const end = lasts - lasts/1024
	for name, test := range map[string]struct {
		there, back, at time.Duration
		spent           bool
	}{
		"the moment before":            {at: end - 1, spent: true},
		"the very instant":             {at: end},
		"within what clocks may drift": {at: lasts - lasts/2048},
		"at its end":                   {at: lasts},
		"the answer took long":         {back: lasts * 3 / 4, at: end - 1, spent: true},
		"the answer took long, at end": {back: lasts * 3 / 4, at: end},
		"the question took long":       {there: lasts * 3 / 4, at: end},
		"the process was stopped":      {at: hold - 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &lender{lends: func(ctx context.Context, r rate.LeaseRequest) (rate.Lease, error) {
				time.Sleep(test.there)
				defer time.Sleep(test.back)
				l, err := lend(ctx, r)
				l.Until = l.At.Add(lasts)
				return l, err
			}}
			leases := s.leases(t)
			claims(t, leases, nil, 1)
			later(test.at)
			if _, spent, _ := leases.Spend(request("a", 1)); spent != test.spent || len(s.asked()) != 1 {
				t.Errorf("%s: spent %t, asked %+v", name, spent, s.asked())
			}
			_ = leases.Close(t.Context())
		})
	}
}

// However many callers spend a lease at once, on as many cores: each token is spent once, and Postgres hears of each.
func TestALeaseIsNotSpentTwice(t *testing.T) {
	t.Parallel()
	s := &lender{lends: func(ctx context.Context, r rate.LeaseRequest) (rate.Lease, error) {
		l, err := lend(ctx, r)
		l.Until = l.At.Add(time.Minute) // what was spent of a lease that is over is not told any more
		return l, err
	}}
	leases := s.leases(t)
	var granted atomic.Int64
	var work sync.WaitGroup
	for range 8 {
		work.Go(func() {
			for i := range int64(20_000) {
				_, served, err := ask(t.Context(), leases, "a", 1+i%3)
				if err != nil {
					t.Error(err)
				}
				if served {
					granted.Add(1 + i%3)
				}
			}
		})
	}
	work.Wait()
	closes(t, leases)
	spent := int64(0)
	for _, r := range s.asked() {
		spent += r.Spent
	}
	if used := leases.Stats.LeasedTokens.Load() - leases.Stats.UnspentTokens.Load(); granted.Load() < 1000 || spent != granted.Load() || used != spent {
		t.Errorf("%d tokens were granted, %d spent, %d used", granted.Load(), spent, used)
	}
}
