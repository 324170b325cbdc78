package pglimit_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// late is a strategy whose answers to looks, and about tokens for new keys, are late.
type late struct {
	*pglimittest.Strategy
	look, token func() time.Duration
}

func (s late) Take(ctx context.Context, session pglimit.Session, requests []rate.Request) (d []pglimit.Decision, err error) {
	d, err = s.Strategy.Take(ctx, session, requests)
	switch {
	case requests[0].Tokens == 0:
		time.Sleep(s.look())
	case strings.HasSuffix(requests[0].Limiter, " (new keys)"):
		time.Sleep(s.token())
	}
	return d, err
}

// All callers of a process who ask for one new key need one token: those who ask meanwhile, and who looked before.
func TestCallersOfOneNewKeyNeedOneToken(t *testing.T) {
	t.Parallel()
	k, l := pglimit.Request{Key: "k", Tokens: 1}, pglimit.Request{Key: "l", Tokens: 1}
	for name, test := range map[string]struct {
		look time.Duration
		asks []pglimit.Request
	}{"meanwhile": {0, []pglimit.Request{k}}, "afterwards": {time.Minute, []pglimit.Request{k}}, "a group, afterwards": {time.Minute, []pglimit.Request{k, l}}} {
		synctest.Test(t, func(t *testing.T) {
			var number atomic.Int64
			s := late{
				pglimittest.MemoryOn(time.Now), func() time.Duration { return time.Duration(number.Add(1)) * test.look / 100 },
				func() time.Duration { return time.Millisecond },
			}
			limiter := newLimiter(t, s, func(c *pglimit.Config) {
				few(c)
				c.Limit, c.Timeout, c.Combine.Off = hourly(100), time.Hour, true
			})
			var work sync.WaitGroup
			for range 20 {
				work.Go(func() {
					if g, err := limiter.DoAll(t.Context(), test.asks...); err != nil || !g.Allowed || g.Decisions[0].Source != pglimit.FromDatabase {
						t.Errorf("%s: %+v, %v", name, g, err)
					}
				})
			}
			work.Wait()
			if s := limiter.Stats(); s.NewKeys != int64(len(test.asks)) {
				t.Errorf("%s: %d tokens", name, s.NewKeys)
			}
		})
	}
}

// tokenless is a strategy whose first answer about a token for a new key is err, if that is not nil, or never comes.
type tokenless struct {
	*pglimittest.Strategy
	err   error
	asked *atomic.Int64
}

func (s tokenless) Take(ctx context.Context, session pglimit.Session, requests []rate.Request) ([]pglimit.Decision, error) {
	if strings.HasSuffix(requests[0].Limiter, " (new keys)") && s.asked.Add(1) == 1 {
		if s.err != nil {
			time.Sleep(time.Second)
			return nil, s.err
		}
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return s.Strategy.Take(ctx, session, requests)
}

// If the caller who asks for the token leaves, another one asks. If Postgres fails him, it has failed all who wait for him.
// Who leaves while he waits is told so.
func TestWhoWaitsForTheTokenOfANewKey(t *testing.T) {
	t.Parallel()
	for _, fails := range []error{context.Canceled, context.DeadlineExceeded, pglimit.ErrUnavailable} {
		synctest.Test(t, func(t *testing.T) {
			s := tokenless{pglimittest.MemoryOn(time.Now), nil, new(atomic.Int64)}
			first, leave := context.WithTimeout(t.Context(), time.Minute)
			defer leave()
			second, leaveToo := context.WithCancel(t.Context())
			served := !errors.Is(fails, pglimit.ErrUnavailable)
			if !served {
				s.err = fails
			}
			limiter := newLimiter(t, s, func(c *pglimit.Config) {
				few(c)
				c.Limit, c.Timeout, c.Combine.Off = hourly(100), time.Hour, true
			})
			var work sync.WaitGroup
			for i, ctx := range []context.Context{first, second, t.Context(), t.Context(), t.Context()} {
				work.Go(func() {
					d, err := limiter.Allow(ctx, "k")
					if served := served && i > 1; d.Allowed != served || (err == nil) != served {
						t.Errorf("caller %d, if it ends by %v: %+v, %v", i, fails, d, err)
					}
				})
				synctest.Wait()
			}
			leaveToo()
			synctest.Wait()
			if errors.Is(fails, context.Canceled) {
				leave()
			}
			work.Wait()
			if asked := s.asked.Load(); !served && asked != 1 {
				t.Errorf("%d have asked, want 1", asked)
			}
		})
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

func TestAnOutageIsNoRefusal(t *testing.T) {
	t.Parallel()
	memory := pglimittest.Memory()
	limiter := bounded(t, memory, func(c *pglimit.Config) { c.OnError, c.NewKeys.OnRefused = pglimit.FailOpen, pglimit.FailClosed })
	letThrough(t, limiter, "a", "b")
	memory.Fail(pglimit.ErrUnavailable)
	for _, key := range []string{"a", "new"} {
		if d, err := limiter.Allow(t.Context(), key); !d.Allowed || d.Source != pglimit.FromFallback || err != nil {
			t.Errorf("%s: %+v, %v", key, d, err)
		}
	}
	if s := limiter.Stats(); s.Failed[pglimit.CauseUnavailable] != 2 {
		t.Errorf("%+v", s)
	}
}

// The token is asked for as durably as all else is, and nobody waits for it where its row is held.
func TestHowATokenIsAskedFor(t *testing.T) {
	t.Parallel()
	strategy := &fake{take: answer(pglimit.Decision{Contended: true, RetryAfter: time.Second})}
	limiter := newLimiter(t, strategy, func(c *pglimit.Config) {
		few(c)
		c.Durability = pglimit.Durable
	})
	d, err := limiter.Allow(t.Context(), "new")
	if asked := strategy.taken[len(strategy.taken)-1][0]; d.Source != pglimit.FromNewKeys || !d.Contended || asked.Tokens != 1 || asked.Durability != pglimit.Durable || err != nil {
		t.Errorf("%+v, %v, after %+v", d, err, asked)
	}
}
