package pglimit_test

import (
	"context"
	"errors"
	"fmt"
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

// alone are the requests that were sent by themselves, because they have an ID or can be blocked.
func (f *fake) alone() (requests []rate.Request) {
	for _, sent := range f.taken {
		if len(sent) == 1 && (sent[0].ID != "" || sent[0].Block != nil) {
			requests = append(requests, sent[0])
		}
	}
	return requests
}

var loginBlock = pglimit.Block{After: 3, Within: time.Minute, For: time.Minute, Max: time.Hour, Forget: 24 * time.Hour}

func withBlock(c *pglimit.Config) { c.Block, c.Memory.Off, c.Combine.Off = loginBlock, false, false }

// A request with an ID reaches the strategy as it is, in a round trip of its own.
func TestARequestWithAnIDGoesOutAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &fake{able: true, take: grantAll}
		limiter := newLimiter(t, s, func(c *pglimit.Config) { c.Memory.Off, c.Combine.Off, c.IDTTL = false, false, time.Hour })
		d, err := limiter.Do(t.Context(), pglimit.Request{Key: "k", Tokens: 1, ID: "id"})
		want := rate.Request{Limiter: "api", Key: "k", Limit: limiter.Limit(), Tokens: 1, Unit: 1, ID: "id", IDTTL: time.Hour}
		if err != nil || !d.Allowed || d.Limit != limiter.Limit() || len(s.taken) != 1 || s.alone()[0] != want {
			t.Errorf("%+v, %v; asked %+v", d, err, s.taken)
		}
		decisions, err := limiter.DoEach(t.Context(), pglimit.Request{Key: "a", Tokens: 1}, pglimit.Request{Key: "b", Tokens: 2, ID: "id"}, pglimit.Request{Key: "c", Tokens: 3})
		if err != nil || decisions[0].Granted != 1 || decisions[1].Granted != 2 || decisions[2].Granted != 3 {
			t.Errorf("%+v, %v", decisions, err)
		}
		if stats := limiter.Stats(); len(s.alone()) != 2 || s.alone()[1].ID != "id" || s.alone()[1].Tokens != 2 || stats.Requests != 4 || decided(stats) != 4 {
			t.Errorf("asked %+v; %+v", s.taken, stats)
		}
		for _, together := range s.taken {
			for _, r := range together {
				if r.ID != "" && len(together) > 1 {
					t.Errorf("sent with others: %+v", r)
				}
			}
		}
	})
}

// Neither the memory of denials answers it, nor is its grant remembered, which may be an earlier
// one. Its denial is.
func TestWhatIsRememberedOfARequestWithAnID(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		empty := pglimit.Decision{RetryAfter: 100 * time.Millisecond, ResetAfter: 2 * time.Second}
		s := &fake{able: true}
		limiter := newLimiter(t, s, func(c *pglimit.Config) { c.Memory.Off = false })
		granted := empty
		granted.Allowed, granted.Granted = true, 1
		withIDs := granted
		s.take = func(ctx context.Context, requests []rate.Request) ([]pglimit.Decision, error) {
			if requests[0].ID != "" {
				return answer(withIDs)(ctx, requests)
			}
			return answer(empty)(ctx, requests)
		}
		ask := func(what string, ask func() (pglimit.Decision, error), source pglimit.Source, allowed bool) {
			t.Helper()
			if d, err := ask(); err != nil || d.Source != source || d.Allowed != allowed {
				t.Errorf("%s: %+v, %v", what, d, err)
			}
		}
		withID := func() (pglimit.Decision, error) {
			return limiter.Do(t.Context(), pglimit.Request{Key: "k", Tokens: 1, ID: "id"})
		}
		without := func() (pglimit.Decision, error) { return limiter.Allow(t.Context(), "k") }
		two := func() (pglimit.Decision, error) { return limiter.AllowN(t.Context(), "k", 2) }
		ask("a grant", withID, pglimit.FromDatabase, true)
		time.Sleep(time.Microsecond)
		ask("it is not remembered", without, pglimit.FromDatabase, false)
		ask("that denial is", without, pglimit.FromMemory, false)
		ask("but not for an ID", withID, pglimit.FromDatabase, true)
		ask("whose grant changes what is left", without, pglimit.FromDatabase, false)
		ask("though it may be an earlier one", withID, pglimit.FromDatabase, true)
		ask("which does not say what is left", two, pglimit.FromDatabase, false)
		time.Sleep(2 * time.Second)
		withIDs = empty
		ask("a denial", withID, pglimit.FromDatabase, false)
		ask("is remembered", without, pglimit.FromMemory, false)
	})
}

func TestIDsThatAreRefused(t *testing.T) {
	t.Parallel()
	// What another request was granted is no outage: OnError is not asked.
	clash := &fake{able: true, take: fail(&pglimit.RequestError{Field: "ID", Why: "is taken"})}
	limiter := newLimiter(t, clash, func(c *pglimit.Config) { c.OnError = pglimit.FailOpen })
	for id, want := range map[string]string{
		"\x00":                   `pglimit: Request.ID "\x00" has a NUL byte, which Postgres cannot store`,
		strings.Repeat("i", 129): "pglimit: Request.ID has 129 bytes: at most 128 are allowed (hash what is longer)",
		"id":                     "pglimit: Request.ID is taken",
	} {
		_, err := limiter.Do(t.Context(), pglimit.Request{Key: "k", Tokens: 1, ID: id})
		if bad := (*pglimit.RequestError)(nil); !errors.As(err, &bad) || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if stats := limiter.Stats(); stats.Failed.Total() != 0 {
		t.Errorf("%+v", stats)
	}
	unable := newLimiter(t, &fake{}, nil)
	_, err := unable.Do(t.Context(), pglimit.Request{Key: "k", Tokens: 1, ID: "id"})
	_, several := unable.DoEach(t.Context(), pglimit.Request{Key: "k", Tokens: 1}, pglimit.Request{Key: "l", Tokens: 1, ID: "id"})
	for _, err := range []error{err, several} {
		if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "the strategy fake cannot charge a request with an ID once") {
			t.Error(err)
		}
	}
	blocking := newLimiter(t, &fake{able: true}, withBlock)
	for what, r := range map[string]pglimit.Request{
		`ID is "id": a Limiter with Config.Block takes none: leave it out`: {Key: "k", Tokens: 1, ID: "id"},
		"Unit is 1: with Config.Block":                                     {Key: "k", Tokens: 2, Unit: 1},
	} {
		_, err := blocking.DoEach(t.Context(), pglimit.Request{Key: "k", Tokens: 1}, r)
		if bad := (*pglimit.RequestError)(nil); !errors.As(err, &bad) || !strings.Contains(err.Error(), what) {
			t.Errorf("%v: want it to say %s", err, what)
		}
	}
}

// It waits no longer than others do, and counts as one who waits. A panic is its own.
func TestARequestThatGoesAloneIsWatched(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &fake{able: true, take: func(ctx context.Context, requests []rate.Request) ([]pglimit.Decision, error) {
			if requests[0].ID == "panic" {
				panic("at the strategy")
			}
			return until(context.Context.Err)(ctx, requests)
		}}
		limiter := newLimiter(t, s, func(c *pglimit.Config) { c.Timeout, c.MaxWaiting, c.Breaker.Off = time.Second, 1, false })
		if _, err := limiter.Do(t.Context(), pglimit.Request{Key: "k", Tokens: 1, ID: "panic"}); err == nil || !strings.Contains(err.Error(), "panicked") {
			t.Error(err)
		}
		var waiting sync.WaitGroup
		waiting.Go(func() {
			began := time.Now()
			if _, err := limiter.Do(t.Context(), pglimit.Request{Key: "k", Tokens: 1, ID: "id"}); !errors.Is(err, pglimit.ErrUnavailable) || time.Since(began) > time.Second {
				t.Errorf("%v after %v", err, time.Since(began))
			}
		})
		synctest.Wait()
		if _, err := limiter.Do(t.Context(), pglimit.Request{Key: "k", Tokens: 1, ID: "id"}); !errors.Is(err, pglimit.ErrOverloaded) {
			t.Error(err)
		}
		waiting.Wait()
	})
}

// Those of a Take go out on as many connections as there are lanes, and one after another for a key
// and in a transaction.
func TestHowManyGoAloneAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var underWay, atOnce atomic.Int64
		s := &fake{able: true, take: func(ctx context.Context, requests []rate.Request) ([]pglimit.Decision, error) {
			n := underWay.Add(1)
			defer underWay.Add(-1)
			for m := atOnce.Load(); n > m && !atOnce.CompareAndSwap(m, n); m = atOnce.Load() {
			}
			time.Sleep(time.Millisecond)
			return grantAll(ctx, requests)
		}}
		limiter := newLimiter(t, s, func(c *pglimit.Config) { c.Combine.Lanes = 3 })
		var requests []pglimit.Request
		for i := range 9 {
			requests = append(requests, pglimit.Request{Key: fmt.Sprint("k", i/2), Tokens: 1, ID: fmt.Sprint(i)})
		}
		for limiter, most := range map[*pglimit.Limiter]int64{limiter: 3, limiter.On(pglimit.InTx(pglimitTx{})): 1} {
			atOnce.Store(0)
			s.taken = nil
			if decisions, err := limiter.DoEach(t.Context(), requests...); err != nil || len(decisions) != 9 {
				t.Error(err)
			}
			last := make(map[string]string)
			for _, r := range s.alone() {
				if r.ID < last[r.Key] {
					t.Errorf("%s: %s behind %s", r.Key, r.ID, last[r.Key])
				}
				last[r.Key] = r.ID
			}
			if atOnce.Load() != most || len(s.alone()) != 9 {
				t.Errorf("%d at once, want %d; %d in all", atOnce.Load(), most, len(s.alone()))
			}
		}
	})
}

// In a transaction the rows stay locked, so those of a Take are locked in one order: two transactions
// that name the same keys in different orders do not deadlock.
func TestTheOrderOfThoseThatGoAlone(t *testing.T) {
	t.Parallel()
	s := &fake{able: true, take: grantAll}
	in := newLimiter(t, s, nil).On(pglimit.InTx(pglimitTx{}))
	for range 20 {
		s.taken = nil
		var requests []pglimit.Request
		for i, name := range strings.Fields("b/z c/a a/z b/a a/a b/z") {
			key, limiter, _ := strings.Cut(name, "/")
			requests = append(requests, pglimit.Request{Key: key, Limiter: limiter, Tokens: 1, ID: fmt.Sprint(i)})
		}
		if _, err := in.DoEach(t.Context(), requests...); err != nil {
			t.Error(err)
		}
		var order string
		for _, r := range s.alone() {
			order += " " + r.Key + "/" + r.Limiter + ":" + r.ID
		}
		if want := " a/a:4 a/z:2 b/a:3 b/z:0 b/z:5 c/a:1"; order != want {
			t.Fatalf("asked%s, want%s", order, want)
		}
	}
}

// With Config.Block every request goes out by itself, and the memory knows only of blocks.
func TestOnlyABlockIsRemembered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &fake{able: true}
		limiter := newLimiter(t, s, func(c *pglimit.Config) { withBlock(c); c.Memory.TTL = 10 * time.Second })
		// The bucket of 10/1s burst 20 is empty, and full again in 2 s.
		denied := pglimit.Decision{RetryAfter: 5 * time.Second, ResetAfter: 7 * time.Second}
		blocked := pglimit.Decision{RetryAfter: 5 * time.Second, ResetAfter: 7 * time.Second, Blocked: true, BlockedFor: 4 * time.Second, At: time.Unix(1000, 0)}
		s.take = answer(denied)
		for range 2 {
			if d, err := limiter.AllowN(t.Context(), "k", 3); err != nil || d.Source != pglimit.FromDatabase {
				t.Errorf("a denial: %+v, %v", d, err)
			}
		}
		s.take = answer(blocked)
		if d, err := limiter.AllowN(t.Context(), "k", 3); err != nil || d.Source != pglimit.FromDatabase || !d.Blocked {
			t.Errorf("a block: %+v, %v", d, err)
		}
		time.Sleep(3 * time.Second)
		// For fewer tokens the bucket would be ready sooner, but the key is blocked.
		d, err := limiter.Allow(t.Context(), "k")
		if about := d.BlockedFor.Round(10 * time.Millisecond); err != nil || d.Source != pglimit.FromMemory || !d.Blocked || about != time.Second || d.RetryAfter.Round(10*time.Millisecond) != 2100*time.Millisecond {
			t.Errorf("while it is blocked: %+v, %v", d, err)
		}
		trips := len(s.taken)
		s.take = answer(pglimit.Decision{RetryAfter: 2 * time.Second, ResetAfter: 4 * time.Second, Blocked: true, BlockedFor: time.Second})
		if d, err := limiter.Peek(t.Context(), "k"); err != nil || !d.Blocked || len(s.taken) != trips+1 {
			t.Errorf("a peek: %+v, %v", d, err)
		}
		time.Sleep(1100 * time.Millisecond)
		s.take = answer(denied)
		if d, err := limiter.AllowN(t.Context(), "k", 3); err != nil || d.Source != pglimit.FromDatabase || d.Blocked {
			t.Errorf("after the block, before the bucket is ready: %+v, %v", d, err)
		}
		if asked := s.alone(); len(asked) != len(s.taken) || *asked[0].Block != loginBlock {
			t.Errorf("asked %+v", s.taken)
		}
		if stats := limiter.Stats(); stats.Blocked != 3 || stats.Denied[pglimit.FromMemory] != 1 {
			t.Errorf("%+v", stats)
		}
	})
}

func TestNewRefusesABlock(t *testing.T) {
	t.Parallel()
	able := &fake{able: true}
	for want, test := range map[string]struct {
		strategy *fake
		change   func(*pglimit.Config)
	}{
		"pglimit: Config.Block.After is 0: it must be at least 1":                                                                                                                       {able, func(c *pglimit.Config) { c.Block.After = 0 }},
		"pglimit: Config.Block.Within is 0s: it must be positive, and at most 87600h0m0s":                                                                                               {able, func(c *pglimit.Config) { c.Block.Within = 0 }},
		"pglimit: Config.Block.For is -1ns: it must be positive, and at most 87600h0m0s":                                                                                                {able, func(c *pglimit.Config) { c.Block.For = -1 }},
		"pglimit: Config.Block.Max is 1s: it must be from For, 1m0s, to 87600h0m0s":                                                                                                     {able, func(c *pglimit.Config) { c.Block.Max = time.Second }},
		"pglimit: Config.Block.Forget is -1ns: it must be from 0 to 87600h0m0s":                                                                                                         {able, func(c *pglimit.Config) { c.Block.Forget = -1 }},
		"pglimit: Config.Leases.On is true: with Config.Block it must be false, because Postgres counts the denials":                                                                    {able, func(c *pglimit.Config) { c.Leases.On = true }},
		"pglimit: Config.Block.For is 1m0s: it must be at least 1m0.000000001s, which a token of 1/60000000001ns takes to come back: an empty bucket denies the key for as long anyway": {able, func(c *pglimit.Config) { c.Limit = pglimit.Every(time.Minute + 1) }},
		"pglimit: Config.Block is more than the strategy fake can do: only token_bucket can: unsupported operation":                                                                     {&fake{}, nil},
	} {
		_, err := pglimit.New(noDB{}, test.strategy, config(func(c *pglimit.Config) {
			withBlock(c)
			if test.change != nil {
				test.change(c)
			}
		}))
		var refused *pglimit.ConfigError
		if !errors.As(err, &refused) || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
		if unable := test.strategy != able; unable != errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%v: unsupported?", err)
		}
	}
	limiter := newLimiter(t, able, withBlock)
	if err := limiter.SetLimit(pglimit.Every(loginBlock.For)); err != nil {
		t.Error(err)
	}
	var refused *pglimit.BlockError
	if err := limiter.SetLimit(pglimit.Every(loginBlock.For + 1)); !errors.As(err, &refused) || refused.Field != "For" || limiter.Limit().Period != loginBlock.For {
		t.Errorf("SetLimit: %v", err)
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
