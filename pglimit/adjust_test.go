package pglimit_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
)

// dial is a Config.Adjust that a test turns.
type dial struct{ percent atomic.Int64 }

func (d *dial) share() float64 { return float64(d.percent.Load()) / 100 }

// turn it, and wait until the Limiters have noticed.
func (d *dial) turn(percent int64) {
	d.percent.Store(percent)
	time.Sleep(110 * time.Millisecond)
}

// yielding is a Limiter with all stages that has a share, in a synctest bubble.
func yielding(t *testing.T, percent int64, change func(*pglimit.Config)) (*pglimit.Limiter, *dial) {
	d := new(dial)
	d.percent.Store(percent)
	return onMemory(t, pglimittest.MemoryOn(time.Now), func(c *pglimit.Config) {
		c.Adjust = d.share
		if change != nil {
			change(c)
		}
	}), d
}

// grants is how many of n requests for a token each are granted.
func grants(t *testing.T, n int, ask func() (pglimit.Decision, error)) (granted int) {
	t.Helper()
	for range n {
		d, err := ask()
		if err != nil && !errors.Is(err, pglimit.ErrWaitTooLong) {
			t.Fatal(err)
		}
		if d.Granted > 0 {
			granted++
		}
	}
	return granted
}

// Whichever way a limit comes to a request, and whichever way it is asked for: what holds is the share.
func TestTheShareHoldsForEveryLimit(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	const n = 120
	hundred := pglimit.PerSecond(100)
	for way, ask := range map[string]func(l *pglimit.Limiter) (pglimit.Decision, error){
		"allow": func(l *pglimit.Limiter) (pglimit.Decision, error) { return l.Allow(ctx, "k") },
		"the request's own": func(l *pglimit.Limiter) (pglimit.Decision, error) {
			return l.Do(ctx, pglimit.Request{Key: "own", Limit: hundred, Tokens: 1})
		},
		"a rule's": func(l *pglimit.Limiter) (pglimit.Decision, error) { return l.Allow(ctx, "rule") },
		"with an ID": func(l *pglimit.Limiter) (pglimit.Decision, error) {
			return l.Do(ctx, pglimit.Request{Key: "k", Tokens: 1, ID: time.Now().String()})
		},
		"as many as there are": func(l *pglimit.Limiter) (pglimit.Decision, error) {
			return l.Do(ctx, pglimit.Request{Key: "k", Tokens: 2, Unit: 1})
		},
		"each": func(l *pglimit.Limiter) (pglimit.Decision, error) {
			ds, err := l.DoEach(ctx, pglimit.Request{Key: "k", Tokens: 1}, pglimit.Request{Key: "k"})
			return ds[0], err
		},
		"all": func(l *pglimit.Limiter) (pglimit.Decision, error) {
			g, err := l.DoAll(ctx, pglimit.Request{Key: "k", Tokens: 1}, pglimit.Request{Key: "rule", Tokens: 1}, pglimit.Request{Key: "l", Tokens: 1, Limit: hundred})
			return g.Decisions[1], err
		},
		"wait": func(l *pglimit.Limiter) (pglimit.Decision, error) {
			return l.Do(ctx, pglimit.Request{Key: "k", Tokens: 1, MaxWait: time.Millisecond})
		},
		"down": func(l *pglimit.Limiter) (pglimit.Decision, error) { return l.Allow(ctx, "k") },
		"reserve": func(l *pglimit.Limiter) (pglimit.Decision, error) {
			r, err := l.Reserve(ctx, "k")
			return r.Decision(), err
		},
	} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				for percent, want := range map[int64]int{100: 100, 40: 40, 1: 1, 0: 0} {
					memory, share := pglimittest.MemoryOn(time.Now), new(dial)
					share.percent.Store(percent)
					limiter := onMemory(t, memory, func(c *pglimit.Config) {
						c.Limit, c.Adjust, c.MaxAhead, c.Leases.On = hundred, share.share, time.Nanosecond, false
						c.Limits = rules(pglimit.LimitRule{Key: "rule", Limit: hundred})
						c.OnError = pglimit.FailLocal(1)
					})
					if way == "down" {
						memory.Fail(pglimit.ErrUnavailable)
					}
					one := func() (pglimit.Decision, error) { time.Sleep(time.Nanosecond); return ask(limiter) }
					tokens := n
					if way == "as many as there are" {
						want = (want + 1) / 2
					}
					if got := grants(t, tokens, one); got != want {
						t.Errorf("%d %%: %d granted", percent, got)
					}
					if stats := limiter.Stats(); stats.AdjustedPercent != 100-percent || percent == 0 && (stats.RoundTrips != 0 || stats.Denied[pglimit.FromAdjust] == 0) {
						t.Errorf("%d %%: %+v", percent, stats)
					}
					time.Sleep(time.Second) // in which as many come back
					if got := grants(t, tokens, one); got != want {
						t.Errorf("%d %%, after a second: %d granted", percent, got)
					}
				}
			})
		})
	}
}

// A share that grows holds at once: what was denied by a smaller one is not remembered, nor is a lease spent that was
// taken by a larger one.
func TestTheShareChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limiter, share := yielding(t, 10, nil)
		ask := func() (pglimit.Decision, error) { return limiter.Allow(t.Context(), "k") }
		for _, step := range []struct{ percent, want int64 }{{10, 10}, {50, 40}, {0, 0}, {20, 0}, {100, 50}, {30, 0}, {100, 0}} {
			share.turn(step.percent)
			if got := grants(t, 120, ask); got != int(step.want) {
				t.Errorf("at %d %%: %d more granted, want %d", step.percent, got, step.want)
			}
			if d, _ := ask(); (d.Source == pglimit.FromAdjust) != (step.percent == 0) {
				t.Errorf("at %d %%: %v", step.percent, d.Source)
			}
		}
	})
}

// A request for more than the share of the burst is denied until the share has grown. In a group, the other buckets may
// have the tokens.
func TestMoreThanTheShareOfTheBurst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var told []pglimit.Decision
		limiter, share := yielding(t, 50, func(c *pglimit.Config) {
			c.OnDecision = func(_ context.Context, _ pglimit.Request, d pglimit.Decision, _ error) { told = append(told, d) }
		})
		d, err := limiter.AllowN(t.Context(), "k", 51)
		if err != nil || d.Allowed || d.Source != pglimit.FromAdjust || d.RetryAfter != time.Second || d.ResetAfter != time.Second || d.Key != "k" || d.Limit.Burst != 50 || len(told) != 1 || told[0] != d {
			t.Errorf("%+v, %v", d, err)
		}
		fits, more := pglimit.Request{Key: "k", Tokens: 50}, pglimit.Request{Key: "l", Tokens: 51}
		for i, group := range [][]pglimit.Request{{more, fits}, {fits, more}} {
			g, err := limiter.DoAll(t.Context(), group...)
			if err != nil || g.Allowed || !g.Decisions[1-i].Allowed || g.Decisions[i].Allowed || g.Denied != g.Decisions[i] || g.RetryAfter != time.Second {
				t.Errorf("%d: %+v, %v", i, g, err)
			}
		}
		var invalid *pglimit.RequestError
		if _, err = limiter.AllowN(t.Context(), "k", 101); !errors.As(err, &invalid) {
			t.Errorf("more than the burst itself: %v", err)
		}
		if stats := limiter.Stats(); stats.RoundTrips != 0 || stats.Denied[pglimit.FromAdjust] != 3 {
			t.Errorf("%+v", stats)
		}
		share.turn(51)
		if d, err = limiter.AllowN(t.Context(), "k", 51); err != nil || !d.Allowed || limiter.Stats().GrantedTokens != 51 {
			t.Errorf("%+v, %v", d, err)
		}
	})
}

// What rules grant without asking is granted; what is only observed is not asked about for a request that is denied by
// the share.
func TestTheShareAndRules(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limiter, _ := yielding(t, 0, func(c *pglimit.Config) {
			c.Limits = rules(allow, deny, pglimit.LimitRule{Action: pglimit.ActionObserve, Limit: hourly(5)}, pglimit.LimitRule{Limiter: "off", Action: pglimit.ActionOff})
		})
		for _, test := range []struct {
			limiter, key string
			allowed      bool
			from         pglimit.Source
		}{{"", "us", true, pglimit.FromRule}, {"", "bot:1", false, pglimit.FromRule}, {"off", "k", true, pglimit.FromRule}, {"", "k", false, pglimit.FromAdjust}} {
			d, err := limiter.Do(t.Context(), pglimit.Request{Limiter: test.limiter, Key: test.key, Tokens: 1})
			if err != nil || d.Allowed != test.allowed || d.Source != test.from || d.Observed != nil {
				t.Errorf("%+v: %+v, %v", test, d, err)
			}
		}
		if limiter.Stats().RoundTrips != 0 {
			t.Errorf("%+v", limiter.Stats())
		}
	})
}

// Tokens that were reserved keep their time, and what is given back goes back by the share by which it was granted.
func TestTheShareAndReservations(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limiter, share := yielding(t, 1, func(c *pglimit.Config) { c.Limit = pglimit.PerSecond(100) })
		first, err := limiter.Reserve(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		second, err := limiter.Reserve(t.Context(), "k")
		if err != nil || first.Delay() != 0 || second.Delay().Round(10*time.Millisecond) != time.Second {
			t.Fatalf("%v, %v, %v", first.Delay(), second.Delay(), err)
		}
		done := make(chan time.Duration)
		go func() {
			began := time.Now()
			_, _ = limiter.Do(t.Context(), pglimit.Request{Key: "k", Tokens: 1, MaxWait: 10 * time.Second})
			done <- time.Since(began)
		}()
		synctest.Wait()
		share.turn(0)
		if waited := <-done; waited.Round(10*time.Millisecond) != 2*time.Second {
			t.Errorf("it waited for %v", waited)
		}
		if d, err := limiter.Do(t.Context(), pglimit.Request{Key: "k", Tokens: 1, MaxWait: 10 * time.Second}); !errors.Is(err, pglimit.ErrWaitTooLong) || d.RetryAfter != time.Second {
			t.Errorf("%+v, %v", d, err)
		}
		share.turn(1)
		third, err := limiter.Reserve(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		share.turn(100)
		if err := third.Cancel(t.Context()); err != nil || limiter.Stats().RefundedTokens != 1 {
			t.Errorf("%v, %+v", err, limiter.Stats())
		}
		// By the share, a token takes as long as it may: nothing more can be reserved.
		slow, _ := yielding(t, 50, func(c *pglimit.Config) { c.Limit, c.MaxAhead = pglimit.Every(pglimit.MaxWindow/2), time.Hour })
		for _, ok := range []bool{true, false} {
			if r, err := slow.Reserve(t.Context(), "k"); err != nil || r.OK() != ok {
				t.Errorf("%+v, %v: reserved %t", r, err, ok)
			}
		}
	})
}

// A fault is counted, and logged when it begins and when it ends.
func TestAdjustFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var broken atomic.Bool
		limiter, _ := yielding(t, 0, func(c *pglimit.Config) {
			c.Logger = slog.New(slog.NewTextHandler(&log, nil))
			c.Adjust = func() float64 {
				if broken.Load() {
					panic("no pressure")
				}
				return 0.7
			}
		})
		for _, is := range []bool{true, false} {
			broken.Store(is)
			time.Sleep(450 * time.Millisecond)
		}
		if stats := limiter.Stats(); stats.AdjustFailed != 4 || stats.AdjustedPercent != 30 {
			t.Errorf("%+v", stats)
		}
		lines := strings.Split(strings.TrimSpace(log.String()), "\n")
		if len(lines) != 2 || !strings.Contains(lines[0], "level=ERROR") || !strings.Contains(lines[0], "limiter=api percent=70") || !strings.Contains(lines[0], "panic: no pressure") || !strings.Contains(lines[1], "level=INFO") {
			t.Errorf("%s", log.String())
		}
	})
}
