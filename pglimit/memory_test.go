package pglimit_test

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// remembering has the memory of denials and no combining.
func remembering(t testing.TB, strategy pglimit.Strategy, change func(*pglimit.Config)) *pglimit.Limiter {
	t.Helper()
	limiter, err := pglimit.New(noDB{}, strategy, config(func(c *pglimit.Config) {
		c.Memory.Off = false
		if change != nil {
			change(c)
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	return limiter
}

// denying answers as a bucket of 10/1s burst 20 does that was emptied down to 0.5 tokens
// at this moment, after the time that the answer takes.
func denying(latency time.Duration) func(context.Context, []rate.Request) ([]pglimit.Decision, error) {
	return func(_ context.Context, requests []rate.Request) ([]pglimit.Decision, error) {
		time.Sleep(latency)
		missing := time.Duration(requests[0].Unit*100-50) * time.Millisecond
		return []pglimit.Decision{{
			RetryAfter: missing, ResetAfter: 1950 * time.Millisecond, At: time.Unix(1000, 0).UTC(),
		}}, nil
	}
}

func TestADenialIsRemembered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		strategy := &fake{take: denying(10 * time.Millisecond)}
		limiter := remembering(t, strategy, nil)
		first, _ := limiter.AllowN(t.Context(), "a", 2) // sent at 0, heard at 10 ms
		if first.RetryAfter != 150*time.Millisecond {
			t.Errorf("%+v", first)
		}
		time.Sleep(90 * time.Millisecond)
		const drift = 90 * time.Millisecond / 1024
		at := time.Unix(1000, 0).Add(90*time.Millisecond - drift).UTC()
		for tokens, want := range map[int64]pglimit.Decision{
			// 90 ms after the answer came, of which a tenth of a percent is not counted.
			2: {RetryAfter: 60*time.Millisecond + drift, ResetAfter: 1860*time.Millisecond + drift, Remaining: 1, At: at},
			5: {RetryAfter: 360*time.Millisecond + drift, ResetAfter: 1860*time.Millisecond + drift, Remaining: 1, At: at},
		} {
			d, err := limiter.AllowN(t.Context(), "a", tokens)
			want.Source, want.Limiter, want.Key, want.Limit = pglimit.FromMemory, "api", "a", limiter.Limit()
			if err != nil || d != want {
				t.Errorf("%d: %+v, %v\nwant %+v", tokens, d, err, want)
			}
		}
		if len(strategy.taken) != 1 {
			t.Fatalf("asked %d times", len(strategy.taken))
		}
		if stats := limiter.Stats(); stats.Denied[pglimit.FromMemory] != 2 || decided(stats) != 1 {
			t.Errorf("%+v", stats)
		}
		for i, ask := range []func(){
			func() { _, _ = limiter.AllowN(t.Context(), "b", 2) }, // another key
			func() { _, _ = limiter.AllowN(t.Context(), "a", 1) }, // fewer
			func() { _, _ = limiter.Peek(t.Context(), "a") },
		} {
			ask()
			if len(strategy.taken) != i+2 {
				t.Errorf("%d: asked %d times", i, len(strategy.taken))
			}
		}
	})
}

func TestADenialIsRememberedForItsTTLAtMost(t *testing.T) {
	t.Parallel()
	for ttl, effective := range map[time.Duration]time.Duration{0: time.Second, 2 * time.Second: 2 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			strategy := &fake{take: answer(pglimit.Decision{RetryAfter: time.Hour})}
			limiter := remembering(t, strategy, func(c *pglimit.Config) { c.Memory.TTL = ttl })
			for _, step := range []struct {
				wait time.Duration
				want int
			}{{0, 1}, {effective * 99 / 100, 1}, {effective / 100, 2}} {
				time.Sleep(step.wait)
				if _, _ = limiter.Allow(t.Context(), "a"); len(strategy.taken) != step.want {
					t.Errorf("%v: asked %d times, want %d", ttl, len(strategy.taken), step.want)
				}
			}
		})
	}
}

func TestAResetForgets(t *testing.T) {
	t.Parallel()
	strategy := &fake{take: answer(pglimit.Decision{RetryAfter: time.Minute})}
	limiter := remembering(t, strategy, nil)
	for range 2 {
		_, _ = limiter.Allow(t.Context(), "a")
		if err := limiter.Reset(t.Context(), "a"); err != nil {
			t.Error(err)
		}
	}
	if len(strategy.taken) != 2 {
		t.Errorf("asked %d times", len(strategy.taken))
	}
}

// Those who wait behind the call that shows it are denied with it.
func TestWhoWaitsIsDeniedByWhatTheCallBeforeHasShown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(answer(pglimit.Decision{Allowed: true, Granted: 1, RetryAfter: 100 * time.Millisecond, ResetAfter: 2 * time.Second, At: time.Unix(1000, 0)}))
		c := combining(t, s, func(c *pglimit.Config) { c.Memory.Off = false })
		c.ask(t.Context(), "a", 1)
		ctx, leave := context.WithCancel(t.Context())
		one, other, gone, two := c.ask(t.Context(), "a", 1), c.ask(t.Context(), "b", 1), c.ask(ctx, "a", 1), c.ask(t.Context(), "a", 2)
		leave()
		synctest.Wait()
		s.finish()
		for _, h := range []*heard{one, two} {
			if h.err != nil || h.Allowed || h.RetryAfter <= 0 {
				t.Errorf("%+v", h)
			}
		}
		if s.asked(1) != "b:1" || gone.err == nil {
			t.Error(s.asked(1), gone)
		}
		s.finish()
		if !other.Allowed {
			t.Errorf("%+v", other)
		}
		if stats := c.limiter.Stats(); stats.Denied[pglimit.FromMemory] != 2 || decided(stats) != 2 {
			t.Errorf("%+v", stats)
		}
	})
}

func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	strategy := &fake{take: answer(pglimit.Decision{RetryAfter: time.Hour})}
	limiter := remembering(t, strategy, func(c *pglimit.Config) { c.Memory.Keys, c.Memory.TTL = 100, time.Hour })
	for round := range 2 {
		for key := range 1000 {
			_, _ = limiter.Allow(t.Context(), strconv.Itoa(key))
		}
		if asked := len(strategy.taken); round == 1 && asked < 1900 {
			t.Errorf("asked %d times for 2 × 1,000 keys: more than 100 are remembered", asked)
		}
	}
}

func TestADenialFromMemoryAllocatesNothing(t *testing.T) {
	strategy := &fake{take: answer(pglimit.Decision{RetryAfter: time.Hour, ResetAfter: 2 * time.Hour})}
	limiter := remembering(t, strategy, func(c *pglimit.Config) {
		c.Memory.TTL, c.Combine.Off, c.Timeout, c.OnError = time.Hour, false, time.Second, pglimit.FailOpen
	})
	ctx := t.Context()
	_, _ = limiter.Allow(ctx, "a")
	if n := testing.AllocsPerRun(1000, func() { _, _ = limiter.Allow(ctx, "a") }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkDenialFromMemory is a denial that is known: of one key, and of 10,000.
// With -cpu 1,2,4,… it shows that callers do not wait for one another.
func BenchmarkDenialFromMemory(b *testing.B) {
	for _, keys := range []int{1, 10_000} {
		b.Run(strconv.Itoa(keys)+" keys", func(b *testing.B) {
			names := make([]string, keys)
			limiter := remembering(b, &fake{take: answer(pglimit.Decision{RetryAfter: time.Hour, ResetAfter: time.Hour})}, func(c *pglimit.Config) {
				c.Memory.TTL, c.Combine.Off, c.Timeout = time.Hour, false, time.Second
			})
			for i := range names {
				names[i] = "user:" + strconv.Itoa(i)
				_, _ = limiter.Allow(b.Context(), names[i])
			}
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				ctx := b.Context()
				for i := 0; pb.Next(); i++ {
					if d, _ := limiter.Allow(ctx, names[i%keys]); d.Allowed {
						b.Error("allowed")
					}
				}
			})
		})
	}
}
