package lease_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit/internal/lease"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// slowly lends what is asked for, after so long.
func slowly(d time.Duration) func(context.Context, rate.LeaseRequest) (rate.Lease, error) {
	return func(ctx context.Context, r rate.LeaseRequest) (rate.Lease, error) {
		select {
		case <-time.After(d):
			return lend(ctx, r)
		case <-ctx.Done():
			return rate.Lease{}, ctx.Err()
		}
	}
}

// claims ask for a lease one after another, and say in the end who was served: "y" or "n", and
// "l" of who left.
func claims(t *testing.T, s *lease.Leases, ctxs map[int]context.Context, tokens ...int64) (served func() string) {
	t.Helper()
	for range 4 {
		_, _, _ = ask(t.Context(), s, "a", 1)
	}
	var mu sync.Mutex
	said := make([]string, len(tokens))
	for i, n := range tokens {
		ctx := ctxs[i]
		if ctx == nil {
			ctx = t.Context()
		}
		go func() {
			_, got, err := ask(ctx, s, "a", n)
			mu.Lock()
			defer mu.Unlock()
			said[i] = map[bool]string{true: "y", false: "n"}[got]
			if err != nil {
				said[i] = "l"
			}
		}()
		synctest.Wait()
	}
	return func() string {
		mu.Lock()
		defer mu.Unlock()
		return strings.Join(said, "")
	}
}

// A lease is served in order of arrival: nobody overtakes one who wants more than is left, and
// then the rest is settled at once, as what it was spent for. Those who have left get nothing.
func TestWhoIsServedOutOfALease(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		tokens []int64
		leaves int // who leaves while the call is under way
		served string
		asked  []int64 // of Postgres
		spent  int64   // of the first lease, when it is settled
	}{
		"all, and some is left":           {tokens: []int64{1, 1, 1}, leaves: -1, served: "yyy", asked: []int64{5}, spent: -1},
		"as many as there are":            {tokens: []int64{1, 1, 1, 1, 1, 1, 1}, leaves: -1, served: "yyyyynn", asked: []int64{5}, spent: -1},
		"one wants more than is left":     {tokens: []int64{1, 1, 4, 1}, leaves: -1, served: "yynn", asked: []int64{5, 0}, spent: 2},
		"one of those who left wants it":  {tokens: []int64{1, 1, 4, 1}, leaves: 2, served: "yyly", asked: []int64{5}, spent: -1},
		"the first has left":              {tokens: []int64{1, 1, 4}, leaves: 0, served: "lyy", asked: []int64{5}, spent: -1},
		"the first wants more than usual": {tokens: []int64{7, 1}, leaves: -1, served: "yn", asked: []int64{7}, spent: -1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &lender{lends: slowly(10 * time.Millisecond)}
				leases := s.leases(t)
				ctx, leave := context.WithCancel(t.Context())
				served := claims(t, leases, map[int]context.Context{test.leaves: ctx}, test.tokens...)
				leave()
				later(30 * time.Millisecond)
				if served() != test.served || !slices.Equal(s.tokens(), test.asked) {
					t.Errorf("served %s, want %s; asked for %d, want %d", served(), test.served, s.tokens(), test.asked)
				}
				if test.spent >= 0 {
					if last := s.asked()[1]; last.Settle.Tokens != 5 || last.Spent != test.spent {
						t.Errorf("settled %+v", last)
					}
					// For a hold there is no other, and what was settled is not settled again.
					for range 10 {
						if _, served, _ := ask(t.Context(), leases, "a", 1); served {
							t.Error("leased again at once")
						}
					}
					if n := leases.Stats.UnspentTokens.Load(); n != 5-test.spent {
						t.Errorf("%d unspent", n)
					}
					later(2 * hold)
					s.becomes(nil)
					busy(t, leases, "a")
				}
				before := leases.Stats.LeasedTokens.Load() - leases.Stats.UnspentTokens.Load()
				closes(t, leases)
				spent := int64(0)
				for _, r := range s.asked() {
					spent += r.Spent
				}
				if used := leases.Stats.LeasedTokens.Load() - leases.Stats.UnspentTokens.Load(); used != spent || used > before {
					t.Errorf("%d used, %d settled as spent", used, spent)
				}
			})
		})
	}
}

// While a fetch takes longer than the keeper's rounds, nobody begins another of the key.
func TestAKeyHasOneLeaseCallUnderWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &lender{lends: slowly(3*hold + hold/2)}
		leases := s.leases(t)
		served := claims(t, leases, nil, 1, 1)
		for range 40 {
			go func() { _, _, _ = ask(t.Context(), leases, "a", 1) }()
			later(hold / 5)
			if n, _ := s.calls(); n > 1 {
				t.Fatalf("%d calls are under way", n)
			}
		}
		later(ttl)
		if !strings.HasPrefix(served(), "yy") {
			t.Error(served())
		}
		s.becomes(nil)
		closes(t, leases)
	})
}

// A lease may have come since the caller looked: it is spent, and none is fetched for it.
func TestWhoComesLateLooksAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &lender{}
		leases := s.leases(t)
		defer closes(t, leases)
		busy(t, leases, "a")
		d, served, err := leases.Fetch(t.Context(), request("a", 1))
		if !served || err != nil || d.Source != rate.FromLease || len(s.asked()) != 1 {
			t.Errorf("%+v, %t, %v, %d calls", d, served, err, len(s.asked()))
		}
	})
}

// After an answer that brought nothing, or too little, or too late, or none at all, nobody asks
// for a lease of the key for a hold. Where an idle lease was settled the next is there at once.
func TestWhenALeaseIsAskedForAgain(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		lends func(context.Context, rate.LeaseRequest) (rate.Lease, error)
		spent int // of what it brought
	}{
		"an error": {lends: func(ctx context.Context, r rate.LeaseRequest) (rate.Lease, error) {
			l, _ := lend(ctx, r) // which must not be spent
			return l, errors.New("the server is down")
		}},
		"too late": {lends: func(ctx context.Context, r rate.LeaseRequest) (rate.Lease, error) {
			l, err := lend(ctx, r)
			l.Until = l.At
			return l, err
		}},
		"nothing": {lends: func(ctx context.Context, r rate.LeaseRequest) (rate.Lease, error) {
			r.Tokens = 0
			return lend(ctx, r)
		}},
		"too little": {lends: func(ctx context.Context, r rate.LeaseRequest) (rate.Lease, error) {
			r.Tokens = min(r.Tokens, 4)
			return lend(ctx, r)
		}, spent: 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &lender{lends: test.lends}
				leases := s.leases(t)
				claims(t, leases, nil, 1)
				for spent := 1; spent < test.spent; spent++ {
					if _, served, err := ask(t.Context(), leases, "a", 1); !served || err != nil {
						t.Fatal(served, err)
					}
				}
				for range 20 {
					if _, served, err := ask(t.Context(), leases, "a", 1); served || err != nil {
						t.Fatal(served, err)
					}
				}
				if len(s.asked()) != 1 {
					t.Errorf("asked for %d", s.tokens())
				}
				s.becomes(nil)
				again := false
				for range 30 { // though the key stays busy; also an empty lease is settled
					later(hold / 10)
					_, served, err := ask(t.Context(), leases, "a", 1)
					if again = again || served; err != nil {
						t.Error(err)
					}
				}
				if !again {
					t.Error("never leased again")
				}
				closes(t, leases)
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		s := &lender{}
		leases := s.leases(t)
		for range 3 { // also by another keeper: the first has ended when there was no lease
			busy(t, leases, "a")
			later(2*hold + hold/2)
			if last := s.asked()[len(s.asked())-1]; last.Tokens != 0 || last.Spent != 1 {
				t.Fatalf("it was idle, and is not settled: %+v", last)
			}
			if len(s.forgotten()) != len(s.asked()) {
				t.Errorf("forgot %q", s.forgotten())
			}
		}
		later(5 * hold)
		for range 3 { // settled, and leased again within the same hold
			busy(t, leases, "b")
			later(2*hold + time.Millisecond)
		}
		closes(t, leases)
	})
}

// A quarter of the burst is not too large to be leased, more is; and after a request for more
// there is no lease for a hold, though none was there.
func TestLargeRequestsAreNotLeased(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &lender{}
		leases := s.leases(t)
		defer closes(t, leases)
		large := limit.Burst / 4
		claims(t, leases, nil)
		if _, served, err := ask(t.Context(), leases, "a", large); !served || err != nil {
			t.Errorf("a quarter: %t, %v", served, err)
		}
		if _, served, _ := ask(t.Context(), leases, "b", large+1); served {
			t.Error("more than a quarter")
		}
		for range 10 {
			if _, served, _ := ask(t.Context(), leases, "b", 1); served {
				t.Fatal("leased, though a large request may be on its way")
			}
		}
		later(hold)
		busy(t, leases, "b")
	})
}

// Requests make a key busy if they come in one hold.
func TestBusyIsCountedByTheHold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &lender{}
		leases := s.leases(t)
		defer closes(t, leases)
		later(hold)
		for range 4 {
			claims(t, leases, nil) // four
			later(hold)
		}
		if len(s.asked()) != 0 {
			t.Errorf("asked for %d", s.tokens())
		}
	})
}

// durably is a request that a relaxed lease must not serve.
func durably(tokens int64) *rate.Request {
	r := request("a", tokens)
	r.Durability = rate.Durable
	return r
}

// What has to be durable is not served out of a relaxed lease. Postgres is asked, and what was
// set aside is settled before.
func TestWhatHasToBeDurableIsNotLeased(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &lender{relaxed: true}
		leases := s.leases(t)
		defer closes(t, leases)
		busy(t, leases, "a")
		if _, spent, left := leases.Spend(durably(1)); spent || !left {
			t.Errorf("spent %t, left %t", spent, left)
		}
		if d, served, err := leases.Fetch(t.Context(), durably(1)); served || err != nil {
			t.Errorf("%+v, %v", d, err)
		}
		if last := s.asked()[len(s.asked())-1]; len(s.asked()) != 2 || last.Tokens != 0 || last.Settle.Tokens != 5 || last.Spent != 1 {
			t.Errorf("asked %+v", s.asked())
		}
		for range 20 { // however busy the key is
			if d, served, err := leases.Fetch(t.Context(), durably(1)); served || err != nil {
				t.Errorf("%+v, %v", d, err)
			}
		}
		if len(s.asked()) != 2 {
			t.Errorf("asked for %d", s.tokens())
		}
	})
}

// Who joins a fetch under way with such a request is not served by it, nor is who comes behind.
func TestWhatHasToBeDurableJoinsAFetch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &lender{relaxed: true, lends: slowly(10 * time.Millisecond)}
		leases := s.leases(t)
		defer closes(t, leases)
		first := claims(t, leases, nil, 1)
		asks := make(chan bool, 1)
		go func() {
			_, served, _ := leases.Fetch(t.Context(), durably(1))
			asks <- !served
		}()
		synctest.Wait()
		behind := make(chan bool, 1)
		go func() {
			_, served, _ := leases.Fetch(t.Context(), request("a", 1))
			behind <- served
		}()
		later(30 * time.Millisecond)
		if first() != "y" || !<-asks || <-behind {
			t.Errorf("the first %s", first())
		}
		if last := s.asked()[len(s.asked())-1]; !slices.Equal(s.tokens(), []int64{5, 0}) || last.Spent != 1 {
			t.Errorf("asked %+v", s.asked())
		}
	})
}
