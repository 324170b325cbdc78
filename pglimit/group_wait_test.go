package pglimit_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// groupWaiter is one caller of DoAll who waits.
type groupWaiter struct {
	group pglimit.Group
	err   error
	took  time.Duration
	over  bool
	leave context.CancelFunc
}

// served is how long it took, or longer than anything.
func (w *groupWaiter) served() time.Duration {
	if w.err != nil {
		return math.MaxInt64
	}
	return w.took
}

// waitForBoth lets a caller wait for a token of the key's buckets of both limiters, so long at most.
func waitForBoth(t *testing.T, limiter *pglimit.Limiter, second pglimit.Limit, longest time.Duration) *groupWaiter {
	ctx, cancel := context.WithCancel(t.Context())
	w := &groupWaiter{leave: cancel}
	began := time.Now()
	go func() {
		defer cancel()
		w.group, w.err = limiter.DoAll(ctx, pglimit.Request{Key: "k", Tokens: 1, MaxWait: longest}, pglimit.Request{Limiter: "second", Key: "k", Tokens: 1, Limit: second})
		w.took, w.over = time.Since(began), true
	}()
	synctest.Wait()
	return w
}

// inMemory is a Limiter of ten a second, one at a time, in a bubble of synctest.
func inMemory(t *testing.T, memory *pglimittest.Strategy, change func(*pglimit.Config)) *pglimit.Limiter {
	t.Helper()
	limiter, err := pglimit.New(memory.Pool(), memory, config(func(c *pglimit.Config) {
		c.Limit, c.Timeout = pglimit.Every(100*ms), time.Second
		c.Combine, c.Memory, c.Breaker = pglimit.Combine{}, pglimit.Memory{}, pglimit.Breaker{}
		if change != nil {
			change(c)
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = limiter.Close(context.WithoutCancel(t.Context())) })
	return limiter
}

// reservedFor is how long the key's bucket of that limit will not be full.
func reservedFor(t *testing.T, limiter *pglimit.Limiter, name string, limit pglimit.Limit) time.Duration {
	t.Helper()
	d, err := limiter.Do(t.Context(), pglimit.Request{Limiter: name, Key: "k", Limit: limit})
	if err != nil {
		t.Error(err)
	}
	return d.ResetAfter
}

// Groups are released one after another when the last of their tokens is due, through each of the stages. The one that
// gives up leaves its place to those behind it, and its tokens of all buckets go back.
func TestGroupsWaitForTheirTurn(t *testing.T) {
	t.Parallel()
	every := pglimit.Every(300 * ms)
	for name, change := range map[string]func(*pglimit.Config){
		"usual":          nil,
		"without stages": func(c *pglimit.Config) { c.Combine.Off, c.Memory.Off, c.Breaker.Off = true, true, true },
		"leases":         func(c *pglimit.Config) { c.Leases.On = true },
		"new keys":       func(c *pglimit.Config) { c.NewKeys.Limit = pglimit.PerSecond(10) },
		"MaxWait":        func(c *pglimit.Config) { c.MaxWait = 1100 * ms },
		"observed rule": func(c *pglimit.Config) {
			c.Limits = rules(pglimit.LimitRule{Action: pglimit.ActionObserve, Limit: pglimit.Every(time.Second)})
		},
		"NoTimeout": func(c *pglimit.Config) { c.Timeout = pglimit.NoTimeout },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				limiter := inMemory(t, pglimittest.MemoryOn(time.Now), change)
				var all []*groupWaiter
				for range 5 {
					all = append(all, waitForBoth(t, limiter, every, time.Minute))
				}
				if name == "MaxWait" {
					if w := all[4]; !w.over || !errors.Is(w.err, pglimit.ErrWaitTooLong) || w.group.RetryAfter != 1200*ms {
						t.Errorf("%+v", w)
					}
					all = all[:4]
				}
				all[1].leave()
				later(3 * time.Second)
				if w := all[1]; !errors.Is(w.err, context.Canceled) || w.group.Decisions != nil {
					t.Errorf("%+v", w)
				}
				for i, w := range append(all[:1:1], all[2:]...) {
					want := time.Duration(i) * 300 * ms
					if !w.over || w.err != nil || !w.group.Allowed || w.took < want || w.took > want+10*ms || w.group.Delay != want {
						t.Errorf("%d: after %v: %+v, %v, want %v", i, w.took, w.group, w.err, want)
						continue
					}
					if d := w.group.Decisions; d[0].Delay != time.Duration(i)*100*ms || d[1].Delay != want || d[1].Limiter != "second" || d[0].Granted != 1 {
						t.Errorf("%d: %+v", i, d)
					}
				}
				if stats := limiter.Stats(); stats.GivenBack != 2 || stats.LostTokens != 0 || stats.Asleep != 0 {
					t.Errorf("%+v", stats)
				}
			})
		})
	}
}

// What was given back by the last group is there at once, in each of its buckets.
func TestAGroupThatGivesUpLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limiter, every := inMemory(t, pglimittest.MemoryOn(time.Now), nil), pglimit.Every(300*ms)
		waitForBoth(t, limiter, every, time.Minute)
		first, second := waitForBoth(t, limiter, every, time.Minute), waitForBoth(t, limiter, every, time.Minute)
		own := pglimit.Every(100 * ms)
		if a, b := reservedFor(t, limiter, "api", own), reservedFor(t, limiter, "second", every); a != 300*ms || b != 900*ms {
			t.Errorf("reserved for %v and %v", a, b)
		}
		first.leave()
		synctest.Wait()
		second.leave()
		synctest.Wait()
		if a, b := reservedFor(t, limiter, "api", own), reservedFor(t, limiter, "second", every); a != 100*ms || b != 300*ms {
			t.Errorf("reserved for %v and %v after all have left", a, b)
		}
	})
}

// What would last too long takes nothing in any bucket, and says how long it would be. The shortest MaxWait counts.
func TestAGroupThatWouldWaitTooLongTakesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limiter, hour := inMemory(t, pglimittest.MemoryOn(time.Now), nil), pglimit.Every(time.Hour)
		waitForBoth(t, limiter, hour, time.Minute)
		later(time.Second)
		for range 2 { // the second is answered from memory
			w := waitForBoth(t, limiter, hour, time.Minute)
			if !w.over || !errors.Is(w.err, pglimit.ErrWaitTooLong) || w.group.Allowed || w.group.RetryAfter != time.Hour-time.Second || w.group.Denied.Limiter != "second" {
				t.Errorf("%+v", w)
			}
		}
		if a := reservedFor(t, limiter, "api", pglimit.Every(100*ms)); a != 0 {
			t.Errorf("reserved for %v", a)
		}
		_, err := limiter.DoAll(t.Context(), pglimit.Request{Key: "k", Tokens: 1, MaxWait: 2 * time.Hour},
			pglimit.Request{Limiter: "second", Key: "k", Tokens: 1, Limit: hour, MaxWait: time.Minute})
		if !errors.Is(err, pglimit.ErrWaitTooLong) {
			t.Error(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := limiter.DoAll(ctx, pglimit.Request{Limiter: "second", Key: "k", Tokens: 1, Limit: hour, MaxWait: 2 * time.Hour}); !errors.Is(err, pglimit.ErrWaitTooLong) {
			t.Error(err)
		}
	})
}

// A window of the calendar that is used up is waited for, if that is not too long; and so is its end if the group
// would be due only after it. A bubble's clock begins at midnight.
func TestAGroupWaitsForTheNextWindow(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		second  pglimit.Limit
		longest time.Duration
		took    []time.Duration // 0: too long
	}{
		"used up":            {pglimit.PerMinute(2).Fixed(), time.Hour, []time.Duration{1, 100 * ms, time.Minute, time.Minute + 100*ms, 2 * time.Minute}},
		"used up for longer": {pglimit.PerDay(2).Fixed(), time.Hour, []time.Duration{1, 100 * ms, 0, 0}},
		"due after its end":  {pglimit.Per(9, time.Second).Fixed(), time.Hour, []time.Duration{1, 100 * ms, 200 * ms, 300 * ms, 400 * ms, 500 * ms, 600 * ms, 700 * ms, 800 * ms, time.Second, 1100 * ms}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				limiter := inMemory(t, pglimittest.MemoryOn(time.Now), nil)
				var all []*groupWaiter
				for range test.took {
					all = append(all, waitForBoth(t, limiter, test.second, test.longest))
				}
				later(5 * time.Minute)
				// In a new window they ask in any order.
				slices.SortFunc(all, func(a, b *groupWaiter) int { return cmp.Compare(a.served(), b.served()) })
				for i, want := range test.took {
					w := all[i]
					if want == 0 {
						if until := 24*time.Hour - w.took; !errors.Is(w.err, pglimit.ErrWaitTooLong) || w.took > ms || w.group.RetryAfter != until {
							t.Errorf("%d: %+v, want %v", i, w, until)
						}
						continue
					}
					if !w.over || w.err != nil || w.took < want-1 || w.took > want+want/500+5*ms {
						t.Errorf("%d: after %v: %+v, %v; want %v", i, w.took, w.group, w.err, want)
					}
				}
			})
		})
	}
}

// nothingAhead is a fake that knows groups.
type nothingAhead struct{ *fake }

func (*nothingAhead) Check(r *rate.Request) error {
	if r.Ahead > 0 {
		return fmt.Errorf("nothing ahead: %w", errors.ErrUnsupported)
	}
	return nil
}

// What a rule grants is not waited for, and a rule may bound the wait.
func TestAGroupWaitsUnderRules(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limiter := inMemory(t, pglimittest.MemoryOn(time.Now), func(c *pglimit.Config) {
			c.Limits = rules(pglimit.LimitRule{Limiter: "second", Action: pglimit.ActionAllow}, pglimit.LimitRule{Limit: pglimit.Every(100 * ms), MaxWait: 150 * ms})
		})
		var all []*groupWaiter
		for range 3 {
			all = append(all, waitForBoth(t, limiter, pglimit.Every(time.Hour), time.Minute))
		}
		later(time.Second)
		for i, w := range all[:2] {
			if want := time.Duration(i) * 100 * ms; w.err != nil || !w.group.Allowed || w.took < want || w.took > want+ms || w.group.Decisions[1].Source != pglimit.FromRule || w.group.Decisions[1].Granted != 1 {
				t.Errorf("%d: %+v", i, w)
			}
		}
		if w := all[2]; !errors.Is(w.err, pglimit.ErrWaitTooLong) || w.took > ms || w.group.RetryAfter != 200*ms || w.group.Decisions[1].Granted != 0 {
			t.Errorf("%+v", w)
		}
	})
}

// What cannot wait is refused, and takes nothing.
func TestGroupsThatCannotWait(t *testing.T) {
	t.Parallel()
	s := &nothingAhead{grouping()}
	r := pglimit.Request{Key: "k", Tokens: 1, MaxWait: time.Minute}
	_, ahead := newLimiter(t, s, nil).DoAll(t.Context(), r)
	_, group := newLimiter(t, &fake{}, nil).DoAll(t.Context(), r)
	_, inTx := newLimiter(t, grouping(), nil).On(pglimit.InTx(pglimitTx{})).DoAll(t.Context(), r)
	for name, err := range map[string]error{"nothing ahead": ahead, "all or nothing": group, "in a transaction": inTx} {
		if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(s.taken) > 0 {
		t.Errorf("asked %q", s.groups())
	}
	closed := newLimiter(t, grouping(), nil)
	if err := closed.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := closed.DoAll(t.Context(), r); !errors.Is(err, pglimit.ErrClosed) || closed.Stats().Failed[pglimit.CauseClosed] != 1 {
		t.Errorf("%v, %+v", err, closed.Stats())
	}
}

// Without Postgres OnError decides: what it grants may be used at once; nobody can wait in turn.
func TestAGroupWaitsWithoutPostgres(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		onError func(context.Context, pglimit.Failure) (pglimit.Decision, error)
		want    error
	}{
		"FailOpen":   {pglimit.FailOpen, nil},
		"FailClosed": {pglimit.FailClosed, pglimit.ErrUnavailable},
		"none":       {nil, errDown},
	} {
		memory := pglimittest.Memory()
		memory.Fail(errDown)
		limiter := inMemory(t, memory, func(c *pglimit.Config) { c.OnError = test.onError })
		g, err := limiter.DoAll(t.Context(), pglimit.Request{Key: "k", Tokens: 1, MaxWait: time.Minute}, pglimit.Request{Key: "l", Tokens: 1})
		if !errors.Is(err, test.want) || g.Allowed != (err == nil) {
			t.Errorf("%s: %+v, %v", name, g, err)
		}
	}
}

// When a window ends, those who slept ask again a few at a time: they do not fill the places of callers who wait for
// Postgres, or OnError would let them pass.
func TestWhoWakesLeavesPlacesToOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limiter := inMemory(t, pglimittest.MemoryOn(time.Now), func(c *pglimit.Config) {
			c.MaxWaiting, c.OnError = 5, pglimit.FailOpen
			c.OnRoundTrip = func(context.Context, pglimit.RoundTrip) { time.Sleep(ms) }
		})
		var all []*groupWaiter
		for range 20 {
			all = append(all, waitForBoth(t, limiter, pglimit.PerMinute(1).Fixed(), time.Hour))
			later(10 * ms)
		}
		later(61 * time.Second)
		granted := 0
		for _, w := range all {
			if !w.over {
				continue
			}
			if granted++; w.err != nil || w.group.Decisions[1].Source != pglimit.FromDatabase {
				t.Errorf("%+v", w)
			}
		}
		if granted != 2 {
			t.Errorf("%d were granted in two windows of one", granted)
		}
	})
}

// What the round trip leaves of the time may be too short.
func TestAGroupWhoseRoundTripTookItsTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var trip time.Duration
		limiter := inMemory(t, pglimittest.MemoryOn(time.Now), func(c *pglimit.Config) {
			c.OnRoundTrip = func(context.Context, pglimit.RoundTrip) { time.Sleep(trip) }
		})
		if _, err := limiter.Allow(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		trip = 100 * ms
		ctx, cancel := context.WithTimeout(t.Context(), 150*ms)
		defer cancel()
		g, err := limiter.DoAll(ctx, pglimit.Request{Key: "k", Tokens: 1, MaxWait: time.Minute})
		if !errors.Is(err, pglimit.ErrWaitTooLong) || g.RetryAfter != 100*ms {
			t.Errorf("%+v, %v", g, err)
		}
	})
}

// A process waits a thousandth longer than it is told, which must not be behind the end of a window.
func TestAGroupIsNotLateForItsWindow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limiter := inMemory(t, pglimittest.MemoryOn(time.Now), func(c *pglimit.Config) { c.Limit = pglimit.Every(24*time.Hour - 30*time.Second) })
		waitForBoth(t, limiter, pglimit.PerDay(2).Fixed(), 48*time.Hour)
		w := waitForBoth(t, limiter, pglimit.PerDay(2).Fixed(), 48*time.Hour)
		later(49 * time.Hour)
		if day := w.group.Decisions[1].At.YearDay(); w.err != nil || (w.took >= 24*time.Hour) != (day == 2) {
			t.Errorf("of day %d: %+v", day, w)
		}
	})
}
