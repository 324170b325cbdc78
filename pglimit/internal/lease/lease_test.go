package lease_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// A lease is at most four times as large as the one before, however fast that was spent; and
// of the one before it counts what was lent, not what was spent of it.
func TestALeaseGrowsFourfoldAtMost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &lender{}
		leases := s.leases(t)
		defer closes(t, leases)
		busy(t, leases, "a")
		for spent := int64(1); spent < 5+20+80+1; spent++ {
			if _, served, err := ask(t.Context(), leases, "a", 1); !served || err != nil {
				t.Fatalf("after %d: %t, %v", spent, served, err)
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

// Who waits for its turn to call does so no longer than a lease lasts, and asks Postgres then.
func TestWhoWaitsForALeaseCallWaitsNoLongerThanALeaseLasts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		goOn := make(chan struct{})
		s := &lender{lends: func(ctx context.Context, r rate.LeaseRequest) (rate.Lease, error) {
			<-goOn // it does not heed its context
			return lend(ctx, r)
		}}
		leases := s.leases(t)
		var took [5]time.Duration
		start := time.Now()
		for i := range took {
			for range 4 {
				_, _, _ = ask(t.Context(), leases, fmt.Sprint(i), 1)
			}
			go func() {
				if _, served, err := ask(t.Context(), leases, fmt.Sprint(i), 1); served || err != nil { // what comes after so long is of no use
					t.Errorf("number %d: %t, %v", i, served, err)
				}
				took[i] = time.Since(start)
			}()
			synctest.Wait()
		}
		later(ttl / 2)
		if n, _ := s.calls(); n != 4 {
			t.Errorf("%d calls are under way", n)
		}
		later(ttl)
		if took[4] != ttl {
			t.Errorf("it waited for %v", took[4])
		}
		s.becomes(nil)
		close(goOn)
		synctest.Wait()
		if leases.Stats.Trips.Load() != 4 {
			t.Errorf("%d trips", leases.Stats.Trips.Load())
		}
		_ = leases.Close(t.Context())
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
