package pglimit_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
)

// What follows is about features that meet: a limiter as in production, with a database in memory.

func onMemory(t *testing.T, memory *pglimittest.Strategy, change func(*pglimit.Config)) *pglimit.Limiter {
	t.Helper()
	c := pglimit.Config{Name: "api", Limit: pglimit.PerHour(100), Leases: pglimit.Leases{On: true, TTL: 10 * time.Second}}
	if change != nil {
		change(&c)
	}
	limiter, err := pglimit.New(memory.Pool(), memory, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := limiter.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return limiter
}

// untilLeased takes tokens of the key, one by one, until there is a lease. It returns how many.
func untilLeased(t *testing.T, limiter *pglimit.Limiter, key string) (taken int64) {
	t.Helper()
	for d := (pglimit.Decision{}); d.Source != pglimit.FromLease; taken++ {
		var err error
		if d, err = limiter.Allow(t.Context(), key); err != nil || !d.Allowed || taken > 90 {
			t.Fatalf("%+v, %v", d, err)
		}
	}
	return taken
}

// Whoever has to ask Postgres is not denied the tokens that this very process has leased.
func TestEveryoneGetsWhatThisProcessHasLeased(t *testing.T) {
	t.Parallel()
	looser := pglimit.PerHour(100).WithBurst(101)
	for name, all := range map[string]func(t *testing.T, l *pglimit.Limiter, left int64) (granted int64, err error){
		"with an ID": func(t *testing.T, l *pglimit.Limiter, left int64) (int64, error) {
			d, err := l.DoEach(t.Context(), pglimit.Request{Key: "k", Tokens: left, ID: "id"})
			return d[0].Granted, err
		},
		"in a group": func(t *testing.T, l *pglimit.Limiter, left int64) (int64, error) {
			g, err := l.DoAll(t.Context(), pglimit.Request{Key: "k", Tokens: left})
			return g.Decisions[0].Granted, err
		},
		"waiting": func(t *testing.T, l *pglimit.Limiter, left int64) (int64, error) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			d, err := l.WaitN(ctx, "k", left)
			return d.Granted, err
		},
		"ahead": func(t *testing.T, l *pglimit.Limiter, left int64) (int64, error) {
			r, err := l.ReserveN(t.Context(), "k", left)
			return left, errors.Join(err, map[bool]error{true: errors.New("they are due later")}[r.Delay() > 0])
		},
		"under another limit": func(t *testing.T, l *pglimit.Limiter, left int64) (int64, error) {
			d, err := l.Do(t.Context(), pglimit.Request{Key: "k", Limit: looser, Tokens: left + 1})
			return d.Granted - 1, err
		},
		"after SetLimit": func(t *testing.T, l *pglimit.Limiter, left int64) (int64, error) {
			if err := l.SetLimit(looser); err != nil {
				return 0, err
			}
			d, err := l.AllowN(t.Context(), "k", left+1)
			return d.Granted - 1, err
		},
		"a peek": func(t *testing.T, l *pglimit.Limiter, _ int64) (int64, error) {
			d, err := l.Peek(t.Context(), "k")
			return d.Remaining, err
		},
		"in one Take with others": func(t *testing.T, l *pglimit.Limiter, left int64) (granted int64, err error) {
			decisions, err := l.DoEach(t.Context(),
				pglimit.Request{Key: "k", Tokens: 10}, pglimit.Request{Key: "k"}, pglimit.Request{Key: "k", Tokens: 10, ID: "id"},
				pglimit.Request{Key: "k", Tokens: 10, Ahead: time.Second}, pglimit.Request{Key: "k", Tokens: left - 29, Limit: looser})
			for _, d := range decisions {
				granted += d.Granted
			}
			return granted - 1, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				limiter := onMemory(t, pglimittest.MemoryOn(time.Now), nil)
				left := limiter.Limit().Burst - untilLeased(t, limiter, "k")
				if granted, err := all(t, limiter, left); granted != left || err != nil {
					t.Errorf("%d of %d, %v", granted, left, err)
				}
			})
		})
	}
}

// What any call granted can be given back, and settled.
func TestWhateverWasGrantedCanBeGivenBack(t *testing.T) {
	t.Parallel()
	plan := pglimit.PerHour(50)
	for name, take := range map[string]func(*testing.T, *pglimit.Limiter) (pglimit.Decision, error){
		"AllowN": func(t *testing.T, l *pglimit.Limiter) (pglimit.Decision, error) { return l.AllowN(t.Context(), "k", 3) },
		"DoAll": func(t *testing.T, l *pglimit.Limiter) (pglimit.Decision, error) {
			g, err := l.DoAll(t.Context(), pglimit.Request{Key: "other", Tokens: 1}, pglimit.Request{Key: "k", Limiter: "day", Limit: plan, Tokens: 3})
			return g.Decisions[1], err
		},
		"an ID": func(t *testing.T, l *pglimit.Limiter) (pglimit.Decision, error) {
			d, err := l.DoEach(t.Context(), pglimit.Request{Key: "k", Tokens: 3, ID: "id"})
			return d[0], err
		},
		"Do": func(t *testing.T, l *pglimit.Limiter) (pglimit.Decision, error) {
			return l.Do(t.Context(), pglimit.Request{Key: "k", Limit: plan, Tokens: 3})
		},
		"ReserveN": func(t *testing.T, l *pglimit.Limiter) (pglimit.Decision, error) {
			r, err := l.ReserveN(t.Context(), "k", 3)
			return r.Decision(), err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				limiter := onMemory(t, pglimittest.MemoryOn(time.Now), nil)
				granted, err := take(t, limiter)
				if err != nil || granted.Granted != 3 {
					t.Fatalf("%+v, %v", granted, err)
				}
				owed := func() time.Duration {
					d, err := limiter.DoEach(t.Context(), pglimit.Request{Limiter: granted.Limiter, Key: granted.Key, Limit: granted.Limit})
					if err != nil {
						t.Error(err)
					}
					return d[0].ResetAfter
				}
				if err := limiter.Refund(t.Context(), granted, 1); err != nil || owed() != 2*granted.Limit.Token() {
					t.Errorf("%v is owed, %v", owed(), err)
				}
				granted.Granted = 2
				if d, err := limiter.Settle(t.Context(), granted, 7); err != nil || d.Granted != 7 || owed() != 7*granted.Limit.Token() {
					t.Errorf("%v is owed, %+v, %v", owed(), d, err)
				}
			})
		})
	}
}

// A denial under one limit ends with a grant under another, also if that was a request with an ID.
func TestAGrantOfAnIDUnderAnotherLimitEndsADenial(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limiter := onMemory(t, pglimittest.MemoryOn(time.Now), func(c *pglimit.Config) { c.Limit = pglimit.Every(time.Hour) })
		for _, source := range []pglimit.Source{pglimit.FromDatabase, pglimit.FromMemory} {
			if d, err := limiter.Allow(t.Context(), "k"); err != nil || d.Source != source {
				t.Errorf("%+v, %v, want it from %v", d, err, source)
			}
		}
		fast := pglimit.PerSecond(1000)
		if d, err := limiter.DoEach(t.Context(), pglimit.Request{Key: "k", Tokens: 1, ID: "id", Limit: fast}); err != nil || !d[0].Allowed {
			t.Errorf("%+v, %v", d, err)
		}
		time.Sleep(2 * time.Millisecond) // both have flowed back, at the faster rate
		if d, err := limiter.Allow(t.Context(), "k"); err != nil || !d.Allowed {
			t.Errorf("%+v, %v", d, err)
		}
	})
}

// An OnError may answer a Wait with a Delay of its own. Who gives that up gives nothing back, because
// Postgres has granted nothing.
func TestAWaitFromFallbackGivesNothingBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		s.memory.Fail(errors.New("down"))
		limiter := waiting(t, s, func(c *pglimit.Config) {
			c.OnError = func(context.Context, pglimit.Failure) (pglimit.Decision, error) {
				return pglimit.Decision{Allowed: true, Granted: 1, Delay: time.Minute}, nil
			}
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		time.AfterFunc(time.Second, cancel)
		if _, err := limiter.Wait(ctx, "k"); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if stats := limiter.Stats(); len(s.refunds) > 0 || stats.GivenBack+stats.LostTokens > 0 {
			t.Errorf("%+v; %+v", s.refunds, stats)
		}
	})
}

// A Limiter that blocks keys says what it cannot do, whatever the deadline, and takes nothing.
func TestWhatALimiterThatBlocksCannotDo(t *testing.T) {
	t.Parallel()
	memory := pglimittest.Memory()
	limiter, err := pglimittest.New(memory, config(withBlock))
	if err != nil {
		t.Fatal(err)
	}
	d, err := limiter.AllowN(t.Context(), "k", 5)
	if err != nil || !d.Allowed {
		t.Fatalf("%+v, %v", d, err)
	}
	const waits, settles, groups = "try again after Decision.RetryAfter", "Settle less", "DoAll of another Limiter"
	instead := map[string]string{"Wait": waits, "Reserve": waits, "Ahead": waits, "Settle": settles, "DoAll": groups}
	for what, call := range map[string]func(context.Context) error{
		"Wait":    func(ctx context.Context) error { _, err := limiter.Wait(ctx, "k"); return err },
		"Reserve": func(ctx context.Context) error { _, err := limiter.Reserve(ctx, "k"); return err },
		"Ahead": func(ctx context.Context) error {
			_, err := limiter.DoEach(ctx, pglimit.Request{Key: "k", Tokens: 1, Ahead: time.Second})
			return err
		},
		"Settle": func(ctx context.Context) error { _, err := limiter.Settle(ctx, d, 6); return err },
		"DoAll": func(ctx context.Context) error {
			_, err := limiter.DoAll(ctx, pglimit.Request{Key: "k", Tokens: 1})
			return err
		},
	} {
		for _, patience := range []time.Duration{time.Hour, 500 * time.Microsecond} {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			if err := call(ctx); !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "a Limiter with Config.Block") || !strings.Contains(err.Error(), instead[what]) {
				t.Errorf("%s: %v", what, err)
			}
			cancel()
		}
	}
	if _, err := limiter.Settle(t.Context(), d, 2); err != nil { // to give back is no harm
		t.Error(err)
	}
	if now, err := limiter.Peek(t.Context(), "k"); err != nil || now.Remaining != d.Remaining+3 {
		t.Errorf("%+v, %v", now, err)
	}
}
