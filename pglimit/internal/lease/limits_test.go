package lease_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit/internal/lease"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

var otherLimit = rate.PerHour(2_000_000)

// under is ask under a limit.
func under(ctx context.Context, s *lease.Leases, limit rate.Limit, key string, tokens int64) (d rate.Decision, served bool, err error) {
	r := request(key, tokens)
	r.Limit = limit
	if d, spent, _ := s.Spend(r); spent {
		return d, true, nil
	}
	return s.Fetch(ctx, r)
}

// A request under another limit does not spend the lease: it is settled, and Postgres is asked.
// Later leases are under the limit of whoever asks.
func TestALeaseServesOneLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := new(lender)
		s := l.leases(t)
		defer closes(t, s)
		busy(t, s, "a") // 4 of 5 are left
		if _, served, err := ask(t.Context(), s, "a", 1); !served || err != nil {
			t.Errorf("served %t, %v", served, err)
		}
		if _, spent, left := s.Spend(func() *rate.Request { r := request("a", 1); r.Limit = otherLimit; return r }()); spent || !left {
			t.Errorf("spent %t, left %t", spent, left)
		}
		if _, served, err := under(t.Context(), s, otherLimit, "a", 1); served || err != nil {
			t.Errorf("served %t, %v", served, err)
		}
		asked := l.asked()
		settled := asked[len(asked)-1]
		if len(asked) != 2 || settled.Tokens != 0 || settled.Settle.Tokens != 5 || settled.Spent != 2 || settled.Limit != limit || len(l.forgotten()) != 2 {
			t.Errorf("%+v", asked)
		}
		later(hold)
		for i := range 5 {
			if d, served, err := under(t.Context(), s, otherLimit, "a", 1); err != nil || served != (i == 4) || served && d.Source != rate.FromLease {
				t.Errorf("request %d: served %t, %v", i, served, err)
			}
		}
		if asked := l.asked(); len(asked) != 3 || asked[2].Limit != otherLimit || asked[2].Settle.Tokens != 0 {
			t.Errorf("%+v", asked)
		}
	})
}

// If the lease is spent, its successor is for the limit of the next request, and one call
// settles the one and makes the other.
func TestASpentLeaseIsReplacedUnderAnotherLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := new(lender)
		s := l.leases(t)
		defer closes(t, s)
		busy(t, s, "a")
		if _, served, err := ask(t.Context(), s, "a", 4); !served || err != nil {
			t.Errorf("served %t, %v", served, err)
		}
		if _, served, err := under(t.Context(), s, otherLimit, "a", 1); !served || err != nil {
			t.Errorf("served %t, %v", served, err)
		}
		if asked := l.asked(); len(asked) != 2 || asked[1].Limit != otherLimit || asked[1].Settle.Tokens != 5 || asked[1].Spent != 5 || asked[1].Tokens == 0 {
			t.Errorf("%+v", asked)
		}
	})
}

// Of those that wait for the same lease, those under another limit ask Postgres, after it is
// settled.
func TestWhoWaitsForALeaseUnderAnotherLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		goOn := make(chan struct{})
		l := &lender{lends: func(ctx context.Context, r rate.LeaseRequest) (rate.Lease, error) {
			<-goOn
			return lend(ctx, r)
		}}
		s := l.leases(t)
		for range 4 {
			_, _, _ = ask(t.Context(), s, "a", 1)
		}
		var served [3]bool
		for i, limit := range []rate.Limit{limit, otherLimit, limit} {
			go func() { _, served[i], _ = under(t.Context(), s, limit, "a", 1) }()
			synctest.Wait()
		}
		close(goOn)
		synctest.Wait()
		if served != [3]bool{true, false, false} {
			t.Errorf("%v", served)
		}
		if asked := l.asked(); len(asked) != 2 || asked[1].Settle.Tokens != 5 || asked[1].Spent != 1 || asked[1].Tokens != 0 || asked[1].Limit != limit {
			t.Errorf("%+v", asked)
		}
		closes(t, s)
	})
}

// A bucket that is asked for under two limits in turn costs no more than a few calls in a hold.
func TestTwoLimitsInTurnAreNoStorm(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := new(lender)
		s := l.leases(t)
		const holds = 50
		for i := range holds * 100 {
			if _, _, err := under(t.Context(), s, []rate.Limit{limit, otherLimit}[i%2], "a", 1); err != nil {
				t.Error(err)
			}
			time.Sleep(hold / 100)
		}
		if n := len(l.asked()); n > 2*holds {
			t.Errorf("%d calls in %d holds", n, holds)
		}
		closes(t, s)
	})
}
