package pglimit_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// trips is an OnRoundTrip that remembers what it is told.
type trips struct {
	mu   sync.Mutex
	told []pglimit.RoundTrip
}

func (t *trips) onRoundTrip(_ context.Context, trip pglimit.RoundTrip) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.told = append(t.told, trip)
}

// take returns what it was told since the last time.
func (t *trips) take() []pglimit.RoundTrip {
	t.mu.Lock()
	defer t.mu.Unlock()
	told := t.told
	t.told = nil
	return told
}

// outcomes of a call for one of byKey's keys. A call that was queued has no time limit of its
// own: it ends when its callers have gone.
var outcomes = map[string]string{
	"granted": "ok", "denied": "ok", "contended": "ok", "down": "other", "gone": "unavailable", "refused": "refused",
	"not migrated": "not_migrated", "no right": "permission", "slow": "timeout", "left": "canceled",
}

func TestOnRoundTripIsToldTheOperation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var heard trips
		limiter := newLimiter(t, newPanicking(), func(c *pglimit.Config) {
			c.Leases.On, c.Limit, c.OnRoundTrip = true, pglimit.PerSecond(1000), heard.onRoundTrip
		})
		load(t, limiter, time.Millisecond, 100*time.Millisecond)
		if err := limiter.Reset(t.Context(), "a"); err != nil {
			t.Error(err)
		}
		if _, err := limiter.ResetAll(t.Context()); err != nil {
			t.Error(err)
		}
		var told []string
		number := make(map[string]int64)
		for _, trip := range heard.take() {
			if number[trip.Operation]++; number[trip.Operation] == 1 {
				told = append(told, trip.Operation)
			}
			if trip.Outcome != "ok" || (trip.Requests == 0) != (trip.Operation != "take") {
				t.Errorf("%+v", trip)
			}
		}
		if got := strings.Join(told, " "); got != "take lease reset reset_all" {
			t.Error(got)
		}
		if s := limiter.Stats(); number["lease"] != s.LeaseTrips || number["take"] != s.RoundTrips {
			t.Errorf("told of %v, counted %+v", number, s)
		}
		_ = limiter.Close(t.Context())
	})
	synctest.Test(t, func(t *testing.T) {
		var heard trips
		s := newServer(grantAll)
		c := combining(t, s, func(c *pglimit.Config) { c.OnRoundTrip = heard.onRoundTrip })
		c.ask(t.Context(), "z", 1)
		ctx, leave := context.WithCancel(t.Context())
		c.ask(ctx, "a", 2)
		s.finish()
		leave()
		synctest.Wait()
		s.finish()
		synctest.Wait()
		told := heard.take()
		if len(told) != 3 || told[1].Operation != "take" || told[2].Operation != "give_back" || told[2].Requests != 0 || told[2].Outcome != "ok" {
			t.Errorf("%+v", told)
		}
	})
}

// A call that the breaker refuses did not happen; one that it gives up did, and failed.
func TestOnRoundTripAndTheBreaker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var heard trips
		silent := &fake{take: fail(fmt.Errorf("%w: connection refused", pglimit.ErrUnavailable))}
		limiter, err := pglimit.New(deadPool{}, silent, config(func(c *pglimit.Config) {
			c.Breaker.Off, c.Timeout, c.OnRoundTrip = false, time.Second, heard.onRoundTrip
		}))
		if err != nil {
			t.Fatal(err)
		}
		for range 10 {
			_, _ = limiter.Allow(t.Context(), "a")
			synctest.Wait()
		}
		if told := heard.take(); len(told) != 1 || told[0].Outcome != "unavailable" || limiter.Stats().Failed[pglimit.CauseBreaker] != 9 {
			t.Errorf("%+v, %+v", told, limiter.Stats())
		}
		time.Sleep(time.Minute)
		if _, err := limiter.Allow(t.Context(), "a"); err == nil || len(heard.take()) != 0 {
			t.Errorf("%v: a sign of life is not a round trip", err)
		}
		_ = limiter.Close(t.Context())
	})
	synctest.Test(t, func(t *testing.T) {
		var heard trips
		frozen := &fake{take: func(ctx context.Context, _ []rate.Request) ([]pglimit.Decision, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}}
		limiter, err := pglimit.New(deadPool{}, frozen, config(func(c *pglimit.Config) {
			c.Breaker.Off, c.Timeout, c.OnRoundTrip = false, 10*time.Second, heard.onRoundTrip
		}))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = limiter.Allow(t.Context(), "a")
		if told := heard.take(); len(told) != 1 || told[0].Outcome != "unavailable" || told[0].Duration != 5*time.Second {
			t.Errorf("%+v", told)
		}
		_ = limiter.Close(t.Context())
	})
}

// deadPool gives no sign of life.
type deadPool struct{ noDB }

func (deadPool) Exec(context.Context, string, ...any) (tag pgconn.CommandTag, err error) {
	return tag, errors.New("connection refused")
}

// A pool may be set up to cancel a query on the server: the error is the server's then.
func TestOutcomeOfACallThatTheServerCancelled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var heard trips
		limiter := newLimiter(t, &fake{take: func(ctx context.Context, _ []rate.Request) ([]pglimit.Decision, error) {
			<-ctx.Done()
			return nil, errors.New("canceling statement due to user request")
		}}, func(c *pglimit.Config) { c.Timeout, c.OnRoundTrip = time.Second, heard.onRoundTrip })
		_, _ = limiter.Allow(t.Context(), "a")
		ctx, leave := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, leave)
		_, _ = limiter.Allow(ctx, "a")
		if told := heard.take(); len(told) != 2 || told[0].Outcome != "timeout" || told[1].Outcome != "canceled" {
			t.Errorf("%+v", told)
		}
	})
}
