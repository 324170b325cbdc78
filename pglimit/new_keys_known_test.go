package pglimit_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

func TestKnownKeysAreBounded(t *testing.T) {
	t.Parallel()
	const keys = 1000
	limiter := bounded(t, pglimittest.Memory(), func(c *pglimit.Config) { c.NewKeys = pglimit.NewKeys{Limit: hourly(keys), Keys: 100} })
	for range 2 {
		for key := range keys {
			letThrough(t, limiter, strconv.Itoa(key))
		}
	}
	if trips := roundTrips(limiter); trips < 3*keys+2*(keys-100) {
		t.Errorf("%d round trips: more than 100 keys are known", trips)
	}
}

// blind is a strategy that cannot look.
type blind struct{ *pglimittest.Strategy }

func (s blind) Take(ctx context.Context, session pglimit.Session, requests []rate.Request) ([]pglimit.Decision, error) {
	if requests[0].Tokens == 0 {
		return nil, pglimit.ErrUnavailable
	}
	return s.Strategy.Take(ctx, session, requests)
}

func TestNoRowIsMadeWithoutALook(t *testing.T) {
	t.Parallel()
	memory := pglimittest.Memory()
	limiter, err := pglimittest.New(blind{memory}, config(few))
	if err != nil {
		t.Fatal(err)
	}
	if d, err := limiter.Allow(t.Context(), "a"); !errors.Is(err, pglimit.ErrUnavailable) {
		t.Errorf("%+v, %v", d, err)
	}
	if hasRow(t, bounded(t, memory, nil), "a") {
		t.Error("there is a row")
	}
}

// A request for a key that is known costs nothing more. After some 50 s without one its row may have been swept: then it is
// a new key. While the budget is known to be used up, a key that is refused costs a look, and no more.
func TestWhatALookCosts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		memory := pglimittest.MemoryOn(time.Now)
		limiter := onMemory(t, memory, func(c *pglimit.Config) {
			c.Limit, c.NewKeys.Limit, c.Leases.On = pglimit.PerSecond(10), pglimit.Every(time.Hour).WithBurst(2), false
		})
		costs := func(what, key string, want int64, allowed bool) {
			t.Helper()
			before := roundTrips(limiter)
			d, err := limiter.Allow(t.Context(), key)
			if trips := roundTrips(limiter) - before; trips != want || d.Allowed != allowed || err != nil {
				t.Errorf("%s costs %d round trips, want %d: %+v, %v", what, trips, want, d, err)
			}
		}
		costs("a new key", "a", 3, true)
		costs("a known key", "a", 1, true)
		time.Sleep(40 * time.Second)
		costs("a known key", "a", 1, true)
		time.Sleep(40 * time.Second)
		costs("a known key", "a", 1, true)
		time.Sleep(51 * time.Second)
		costs("a key with a row", "a", 2, true)
		costs("a new key", "b", 3, true)
		costs("a refusal", "c", 1, false)
		costs("a refusal", "d", 1, false)
		time.Sleep(62 * time.Second)
		if swept, err := memory.Sweep(t.Context(), nil, 0, 100); swept.Removed != 2 || err != nil {
			t.Error(swept, err)
		}
		costs("a swept key, with the budget's memory gone", "a", 2, false)
	})
}

// A row is known from when it was asked about, which may be long before the answer. What an ID is answered again says
// nothing about it.
func TestSinceWhenARowIsKnown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		look := time.Duration(0)
		s := late{pglimittest.MemoryOn(time.Now), func() time.Duration { return look }, func() time.Duration { return 0 }}
		limiter := newLimiter(t, s, func(c *pglimit.Config) {
			few(c)
			c.Limit = hourly(10)
		})
		looks := func(what string, after time.Duration) {
			t.Helper()
			time.Sleep(after)
			before := roundTrips(limiter)
			if letThrough(t, limiter, "a"); roundTrips(limiter) != before+2 {
				t.Errorf("%s: %d round trips", what, roundTrips(limiter)-before)
			}
		}
		for range 2 {
			if d, err := limiter.Do(t.Context(), pglimit.Request{Key: "a", Tokens: 1, ID: "id"}); !d.Allowed || err != nil {
				t.Fatal(d, err)
			}
			time.Sleep(40 * time.Second)
		}
		looks("an ID", 0)
		time.Sleep(time.Minute)
		look = 30 * time.Second
		if _, err := limiter.Peek(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		look = 0
		looks("a late answer", 25*time.Second)
	})
}

// One road with the stage and without: where the key is known it allocates nothing.
func TestAKnownKeyAllocatesNothing(t *testing.T) {
	var allocations [2]float64
	for i, limit := range []pglimit.Limit{{}, pglimit.PerSecond(2)} {
		row := pglimit.Decision{Allowed: true, Granted: 1, HasRow: true, ResetAfter: time.Hour}
		looked := row
		looked.Granted = 0
		limiter := newLimiter(t, &fake{take: func(_ context.Context, requests []rate.Request) ([]pglimit.Decision, error) {
			if requests[0].Tokens == 0 {
				return []pglimit.Decision{looked}, nil
			}
			return []pglimit.Decision{row}, nil
		}}, func(c *pglimit.Config) { c.NewKeys.Limit = limit })
		ctx := t.Context()
		allocations[i] = testing.AllocsPerRun(1000, func() {
			if d, err := limiter.Allow(ctx, "a"); !d.Allowed || err != nil {
				t.Error(d, err)
			}
		})
	}
	if allocations[0] != allocations[1] {
		t.Errorf("%v allocations without, %v with new keys that are bounded", allocations[0], allocations[1])
	}
}
