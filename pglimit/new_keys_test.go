package pglimit_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/internal/bucket"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// counting is a strategy whose denials have to be counted.
type counting struct{ *fake }

func (counting) Rule() rate.Rule { return countingRule{} }

type countingRule struct{ bucket.Rule }

func (countingRule) Denies(pglimit.Decision, int64, int64, time.Duration) bool { return false }

// few lets two new keys through, and then one in half a second.
func few(c *pglimit.Config) { c.NewKeys.Limit = pglimit.PerSecond(2) }

// bounded is a Limiter of new keys on memory, without stages.
func bounded(t *testing.T, memory *pglimittest.Strategy, change func(*pglimit.Config)) *pglimit.Limiter {
	t.Helper()
	limiter, err := pglimittest.New(memory, config(func(c *pglimit.Config) {
		few(c)
		if change != nil {
			change(c)
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	return limiter
}

// letThrough asks for new keys until the budget is used up.
func letThrough(t *testing.T, limiter *pglimit.Limiter, keys ...string) {
	t.Helper()
	for _, key := range keys {
		if d, err := limiter.Allow(t.Context(), key); err != nil || d.Source == pglimit.FromNewKeys {
			t.Fatalf("%s: %+v, %v", key, d, err)
		}
	}
}

func hasRow(t *testing.T, limiter *pglimit.Limiter, key string) bool {
	t.Helper()
	d, err := limiter.Peek(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return d.HasRow
}

func TestNewKeysAreBounded(t *testing.T) {
	t.Parallel()
	memory := pglimittest.Memory()
	limiter := bounded(t, memory, nil)
	letThrough(t, limiter, "a", "b", "a")
	d, err := limiter.Allow(t.Context(), "c")
	want := pglimit.Decision{RetryAfter: 500 * time.Millisecond, At: memory.Now(), Source: pglimit.FromNewKeys, Limiter: "api", Key: "c", Limit: limiter.Limit()}
	if d != want || err != nil || hasRow(t, limiter, "c") {
		t.Errorf("got  %+v, %v\nwant %+v", d, err, want)
	}
	letThrough(t, limiter, "b", "a")
	memory.Advance(500 * time.Millisecond)
	letThrough(t, limiter, "c")
	if s := limiter.Stats(); s.NewKeys != 3 || s.Denied[pglimit.FromNewKeys] != 1 || s.Denied.Total() != 1 || s.Allowed[pglimit.FromDatabase] != 7 || s.GrantedTokens != 6 {
		t.Errorf("%+v", s)
	}
}

// A key has a row or not in Postgres: who has asked for it before, and whether its bucket is full, does not matter.
func TestAKeyWithARowIsNeverRefused(t *testing.T) {
	t.Parallel()
	memory := pglimittest.Memory()
	letThrough(t, bounded(t, memory, func(c *pglimit.Config) { c.NewKeys = pglimit.NewKeys{} }), "old", "older", "oldest")
	memory.Advance(time.Hour)
	limiter := bounded(t, memory, nil)
	letThrough(t, limiter, "a", "b", "old", "older")
	if s := limiter.Stats(); s.NewKeys != 2 || !hasRow(t, limiter, "oldest") {
		t.Errorf("%+v", s)
	}
	if swept, err := memory.Sweep(t.Context(), nil, 0, 100); swept.Removed != 1 || err != nil { // a full bucket is not sure to have its row a moment later
		t.Fatal(swept, err)
	}
	if d, err := limiter.Allow(t.Context(), "oldest"); d.Source != pglimit.FromNewKeys || err != nil {
		t.Errorf("%+v, %v", d, err)
	}
}

func TestWhatARefusedKeyIsAnswered(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for name, test := range map[string]struct {
		onRefused func(context.Context, pglimit.Failure) (pglimit.Decision, error)
		want      []bool // of three requests for a token of 2
		err       error
	}{
		"denied": {nil, []bool{false, false, false}, nil},
		"passed": {pglimit.FailOpen, []bool{true, true, true}, nil},
		"local":  {pglimit.FailLocal(1), []bool{true, true, false}, nil},
		"error": {func(_ context.Context, failed pglimit.Failure) (pglimit.Decision, error) {
			if failed.Request.Key != "new" || !errors.Is(failed.Err, pglimit.ErrTooManyNewKeys) {
				t.Errorf("%+v", failed)
			}
			return pglimit.Decision{}, broken
		}, []bool{false, false, false}, broken},
	} {
		limiter := bounded(t, pglimittest.Memory(), func(c *pglimit.Config) { c.Limit, c.NewKeys.OnRefused = pglimit.PerHour(2), test.onRefused })
		letThrough(t, limiter, "a", "b")
		var granted, denied int64
		for i, want := range test.want {
			if !want {
				denied++
			}
			d, err := limiter.Allow(t.Context(), "new")
			if d.Allowed != want || !errors.Is(err, test.err) || err == nil && d.Source != pglimit.FromNewKeys {
				t.Errorf("%s, request %d: %+v, %v", name, i, d, err)
			}
			if granted += d.Granted; d.Granted > 0 {
				if err := limiter.Refund(t.Context(), d, 1); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				if _, err := limiter.Settle(t.Context(), d, 2); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
		if s := limiter.Stats(); hasRow(t, limiter, "new") || s.Allowed[pglimit.FromNewKeys] != granted || s.Denied[pglimit.FromNewKeys] != denied || s.GrantedTokens != 2 || s.Failed.Total() != 0 {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

// Whatever makes a row asks for a token first.
func TestEveryRoadIsBounded(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	one := pglimit.Request{Key: "new", Tokens: 1}
	for road, ask := range map[string]func(*pglimit.Limiter) (pglimit.Decision, error){
		"Allow": func(l *pglimit.Limiter) (pglimit.Decision, error) { return l.Allow(ctx, "new") },
		"ID": func(l *pglimit.Limiter) (pglimit.Decision, error) {
			return l.Do(ctx, pglimit.Request{Key: "new", Tokens: 1, ID: "id"})
		},
		"another limiter": func(l *pglimit.Limiter) (pglimit.Decision, error) {
			return l.Do(ctx, pglimit.Request{Limiter: "api/day", Key: "a", Tokens: 1})
		},
		"DoEach": func(l *pglimit.Limiter) (pglimit.Decision, error) {
			ds, err := l.DoEach(ctx, pglimit.Request{Key: "a", Tokens: 1}, one, pglimit.Request{Key: "new"})
			for _, i := range []int{0, 2} { // and a peek
				if !ds[i].Allowed || ds[i].Source != pglimit.FromDatabase {
					t.Errorf("%+v", ds)
				}
			}
			return ds[1], err
		},
		"DoAll": func(l *pglimit.Limiter) (pglimit.Decision, error) {
			g, err := l.DoAll(ctx, pglimit.Request{Key: "a", Tokens: 1}, one)
			if !g.Decisions[0].Allowed || g.Decisions[0].Granted != 0 || g.Allowed {
				t.Errorf("%+v", g)
			}
			return g.Denied, err
		},
		"Wait": func(l *pglimit.Limiter) (pglimit.Decision, error) {
			d, err := l.Wait(ctx, "new")
			if !errors.Is(err, pglimit.ErrTooManyNewKeys) || !errors.Is(err, pglimit.ErrWaitTooLong) {
				t.Errorf("%v", err)
			}
			return d, nil
		},
		"Reserve": func(l *pglimit.Limiter) (pglimit.Decision, error) {
			r, err := l.Reserve(ctx, "new")
			return r.Decision(), err
		},
	} {
		limiter := bounded(t, pglimittest.Memory(), func(c *pglimit.Config) { c.MaxWait = time.Minute })
		letThrough(t, limiter, "a", "b")
		if d, err := ask(limiter); err != nil || d.Allowed || d.Source != pglimit.FromNewKeys || d.RetryAfter != 500*time.Millisecond {
			t.Errorf("%s: %+v, %v", road, d, err)
		}
		if hasRow(t, limiter, "new") {
			t.Errorf("%s has made a row", road)
		}
	}
}

// A block may outlast the bucket's row, and still holds.
func TestABlockedKeyIsNotNew(t *testing.T) {
	t.Parallel()
	memory := pglimittest.Memory()
	limiter := bounded(t, memory, func(c *pglimit.Config) {
		c.Limit, c.NewKeys.OnRefused = pglimit.PerSecond(1), pglimit.FailOpen
		c.Block = pglimit.Block{After: 1, Within: time.Minute, For: time.Hour, Max: time.Hour, Forget: time.Hour}
	})
	letThrough(t, limiter, "a", "a")
	memory.Advance(2 * time.Minute)
	if _, err := memory.Sweep(t.Context(), nil, 0, 100); err != nil || hasRow(t, limiter, "a") {
		t.Fatal(err)
	}
	another := bounded(t, memory, func(c *pglimit.Config) { *c = limiter.Config() })
	letThrough(t, another, "b", "c")
	if d, err := another.Allow(t.Context(), "a"); err != nil || !d.Blocked {
		t.Errorf("%+v, %v", d, err)
	}
	if d, err := another.Allow(t.Context(), "new"); err != nil || d.Source != pglimit.FromNewKeys {
		t.Errorf("%+v, %v", d, err)
	}
}

// What makes no row needs no token, and no look either.
func TestWhatMakesNoRowIsNotBounded(t *testing.T) {
	t.Parallel()
	limiter := bounded(t, pglimittest.Memory(), func(c *pglimit.Config) { c.Limits = rules(allow, deny) })
	letThrough(t, limiter, "a", "b")
	trips := roundTrips(limiter)
	for key, want := range map[string]pglimit.Source{"us": pglimit.FromRule, "bot:7": pglimit.FromRule} {
		if d, err := limiter.Allow(t.Context(), key); d.Source != want || err != nil {
			t.Errorf("%s: %+v, %v", key, d, err)
		}
	}
	if d, err := limiter.Peek(t.Context(), "new"); !d.Allowed || d.Source != pglimit.FromDatabase || err != nil {
		t.Errorf("%+v, %v", d, err)
	}
	if err := limiter.Reset(t.Context(), "new"); err != nil {
		t.Error(err)
	}
	if now := roundTrips(limiter); now != trips+1 {
		t.Errorf("%d round trips", now-trips)
	}
}

// The row that counts for a rule that is only observed is a row, too; what it would have decided is then not known.
// A request that is only observed goes with the one that it stands beside, and needs no token of its own.
func TestWhatIsObservedNeedsNoToken(t *testing.T) {
	t.Parallel()
	memory := pglimittest.Memory()
	limiter := bounded(t, memory, func(c *pglimit.Config) {
		c.Limits = rules(pglimit.LimitRule{Action: pglimit.ActionObserve, Limit: hourly(1)})
	})
	for i, want := range []bool{true, true, false} {
		d, err := limiter.Allow(t.Context(), strconv.Itoa(i))
		if err != nil || (d.Source == pglimit.FromDatabase) != want || (d.Observed != nil) != want {
			t.Errorf("request %d: %+v, %v", i, d, err)
		}
	}
	if s := limiter.Stats(); s.NewKeys != 2 || s.ObservedDenied != 0 {
		t.Errorf("%+v", s)
	}
	memory.Advance(1000 * time.Hour)
	if rows, err := memory.Sweep(t.Context(), nil, 0, 100); err != nil || rows.Removed != 5 { // two keys, the same observed, and the budget
		t.Errorf("%+v, %v", rows, err)
	}
}

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

// A request for a key that is known costs nothing more. After some 50 s without one its row may have been swept: then
// it is a new key. While the budget is known to be used up, a key that is refused costs a look, and no more.
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

// What a request cost is charged, though its row was swept meanwhile.
func TestSettleNeedsNoToken(t *testing.T) {
	t.Parallel()
	memory := pglimittest.Memory()
	limiter := bounded(t, memory, func(c *pglimit.Config) { c.Limit = hourly(100) })
	d, err := limiter.AllowN(t.Context(), "long", 1)
	if err != nil {
		t.Fatal(err)
	}
	memory.Advance(time.Hour)
	if _, err := memory.Sweep(t.Context(), nil, 0, 100); err != nil {
		t.Fatal(err)
	}
	later := bounded(t, memory, func(c *pglimit.Config) { c.Limit = hourly(100) })
	letThrough(t, later, "a", "b")
	if d, err := later.Settle(t.Context(), d, 10); err != nil || d.Granted != 10 || d.Source != pglimit.FromDatabase {
		t.Errorf("%+v, %v", d, err)
	}
}
