package pglimit_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
)

// trips are what the strategy was asked, with a "!" behind impatient requests.
func (f *fake) trips() (trips []string) {
	for i := range f.taken {
		trip := f.asked(i)
		if f.taken[i][0].Impatient {
			trip += "!"
		}
		trips = append(trips, trip)
	}
	return trips
}

// Without combining, a request waits for its row from the beginning. Several do not, as a call
// for several rows never waits: each asks alone, and those whose rows are held wait last.
func TestAHeldRowWithoutCombining(t *testing.T) {
	t.Parallel()
	errLocked := fmt.Errorf("%w, %w", pglimit.ErrLocked, pglimit.ErrNothingTaken)
	s := &fake{}
	s.take = func(ctx context.Context, requests []pglimit.Request) ([]pglimit.Decision, error) {
		if (requests[0].Impatient || len(requests) > 1) && requests[0].Key == "a" {
			return nil, errLocked
		}
		return grantAll(ctx, requests)
	}
	guarded := newLimiter(t, s, func(c *pglimit.Config) { c.Breaker.Off = false })
	for _, test := range []struct {
		limiter *pglimit.Limiter
		keys    []string
		want    []string
	}{
		{guarded, []string{"a"}, []string{"a:1"}},
		{guarded, []string{"b"}, []string{"b:1"}},
		{guarded, []string{"a", "b"}, []string{"a:1 b:1", "a:1!", "b:1!", "a:1"}},
		{newLimiter(t, s, nil), []string{"a"}, []string{"a:1"}},
	} {
		s.taken = nil
		var requests []pglimit.Request
		for _, key := range test.keys {
			requests = append(requests, pglimit.Request{Key: key, Tokens: 1})
		}
		decisions, err := test.limiter.DoEach(t.Context(), requests...)
		if err != nil || slices.ContainsFunc(decisions, func(d pglimit.Decision) bool { return !d.Allowed }) {
			t.Errorf("%q: %+v, %v", test.keys, decisions, err)
		}
		if got := s.trips(); !slices.Equal(got, test.want) {
			t.Errorf("%q: asked %q, want %q", test.keys, got, test.want)
		}
	}
}

// Who has an answer waits no more, whatever it is, and however it was asked.
func TestNobodyWaitsWhoHasAnAnswer(t *testing.T) {
	t.Parallel()
	for _, alone := range []bool{false, true} {
		for name, take := range map[string]func(context.Context, []pglimit.Request) ([]pglimit.Decision, error){"granted": grantAll, "failed": fail(errDown)} {
			limiter := newLimiter(t, leasingFake{&fake{take: take}}, func(c *pglimit.Config) { c.Combine.Off, c.Leases.On, c.MaxWaiting = alone, true, 2 })
			for range 10 { // more than may wait, and enough to be busy
				_, _ = limiter.Allow(t.Context(), "a")
				_, _ = limiter.Peek(t.Context(), "a")
				_, _ = limiter.On(pglimit.InTx(pglimitTx{})).Allow(t.Context(), "a")
				_, _ = limiter.DoEach(t.Context(), pglimit.Request{Key: "b", Tokens: 1}, pglimit.Request{Key: "c", Tokens: 1}, pglimit.Request{Key: "d", Tokens: 1})
			}
			if stats := limiter.Stats(); stats.Waiting != 0 {
				t.Errorf("%s, alone %t: %d wait", name, alone, stats.Waiting)
			}
			_, err := limiter.Allow(t.Context(), "a")
			if errors.Is(err, pglimit.ErrOverloaded) {
				t.Errorf("%s, alone %t: %v", name, alone, err)
			}
			_ = limiter.Close(t.Context())
		}
	}
}

// held is a bank whose leases take as long as somebody holds the row.
type held struct {
	*bank
	forHowLong time.Duration
}

func (h held) Lease(ctx context.Context, session pglimit.Session, r pglimit.LeaseRequest) (pglimit.Lease, error) {
	time.Sleep(h.forHowLong)
	return h.bank.Lease(ctx, session, r)
}

// That a call waits for a row which somebody holds says nothing of Postgres, and leaves the
// circuit closed: a patient one, a refund, and one that fetches a lease.
func TestARowThatIsHeldIsNoOutage(t *testing.T) {
	t.Parallel()
	const timeout = 100 * time.Millisecond
	guarded := func(c *pglimit.Config) {
		c.Combine.Off, c.Combine.Lanes, c.Breaker.Off, c.Timeout, c.Limit = false, 2, false, timeout, perHour(1000)
	}
	closed := func(t *testing.T, what string, limiter *pglimit.Limiter) {
		t.Helper()
		for range 8 {
			later(timeout)
			if stats := limiter.Stats(); stats.Open != 0 {
				t.Fatalf("%s: the circuit is open: %+v", what, stats)
			}
		}
	}
	t.Run("a patient call", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := newTable(t)
			limiter := newLimiter(t, s, guarded)
			for _, key := range []string{"a", "b"} {
				time.AfterFunc(900*time.Millisecond, s.hold(key))
				callers{t, limiter}.ask(t.Context(), key, 1)
			}
			closed(t, "a patient call", limiter)
			later(time.Second)
		})
	})
	t.Run("a refund", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := &fake{take: grantAll, giveBack: func(ctx context.Context) error {
				<-ctx.Done()
				return ctx.Err()
			}}
			s.take = func(ctx context.Context, requests []pglimit.Request) ([]pglimit.Decision, error) {
				time.Sleep(timeout / 2)
				return grantAll(ctx, requests)
			}
			limiter := newLimiter(t, s, guarded)
			ctx, leave := context.WithTimeout(t.Context(), timeout/4)
			defer leave()
			for i := range 20 { // so that each lane has one, which is queued: a lone request takes its caller's context along
				go func() {
					_, _ = limiter.DoEach(ctx, pglimit.Request{Key: fmt.Sprint(i), Tokens: 1}, pglimit.Request{Key: fmt.Sprint(i, "b"), Tokens: 1})
				}()
			}
			closed(t, "a refund", limiter)
			later(2 * time.Second)
			if stats := limiter.Stats(); stats.RoundTrips != 2 || stats.LostTokens < 2 {
				t.Errorf("each lane had a refund: %+v", stats)
			}
		})
	})
	t.Run("a lease", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			limiter := newLimiter(t, held{newBank(), 700 * time.Millisecond}, func(c *pglimit.Config) {
				guarded(c)
				c.Leases.On = true
			})
			for i := range 20 {
				go func() { _, _ = limiter.Allow(t.Context(), []string{"a", "b", "c", "d"}[i%4]) }()
			}
			closed(t, "a lease", limiter)
			_ = limiter.Close(t.Context())
		})
	})
}
