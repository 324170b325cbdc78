package pglimit_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
)

const ms = time.Millisecond

// waiter is one caller of Wait and what became of it.
type waiter struct {
	decision pglimit.Decision
	err      error
	took     time.Duration
	over     atomic.Bool
	leave    context.CancelFunc
}

// waitN lets a caller wait that has that long, and returns when it waits.
func waitN(t *testing.T, limiter *pglimit.Limiter, key string, n int64, patience time.Duration) *waiter {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	w := &waiter{leave: cancel}
	began := time.Now()
	go func() {
		defer cancel()
		w.decision, w.err = limiter.WaitN(ctx, key, n)
		w.took = time.Since(began)
		w.over.Store(true)
	}()
	synctest.Wait()
	return w
}

// Callers who come at once share a round trip, and each has its own place.
func TestWaitersAreCombined(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		s.latency = 10 * ms
		limiter := waiting(t, s, nil)
		var waiters []*waiter
		for range 10 {
			waiters = append(waiters, waitN(t, limiter, "k", 1, 5*time.Second))
		}
		waiters = append(waiters, waitN(t, limiter, "k", 1, 950*ms)) // the eleventh would be due after 1 s
		later(2 * time.Second)
		if len(s.taken) != 2 || len(s.taken[1]) != 2 || s.taken[1][0].Tokens != 9 {
			t.Errorf("%d calls: %+v", len(s.taken), s.taken)
		}
		for i, w := range waiters[:10] {
			// The second answer came 40 ms after the first decision, and counts from there.
			if want := time.Duration(i) * 100 * ms; w.err != nil || w.took < want || w.took > want+32*ms {
				t.Errorf("%d: after %v: %+v, %v", i, w.took, w.decision, w.err)
			}
		}
		if w := waiters[10]; !errors.Is(w.err, pglimit.ErrWaitTooLong) || w.decision.RetryAfter < 950*ms {
			t.Errorf("%+v, %v", w.decision, w.err)
		}
	})
}

// What would last too long fails at once, and takes nothing.
func TestAWaitThatWouldBeTooLongFailsAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		limiter := waiting(t, s, func(c *pglimit.Config) { c.MaxWait = 150 * ms })
		first := waitN(t, limiter, "k", 1, time.Hour)
		if !first.over.Load() || first.err != nil {
			t.Fatalf("%+v", first)
		}
		for range 2 { // the second is answered from memory, if that knows that it is too long
			w := waitN(t, limiter, "k", 1, 50*ms)
			if !w.over.Load() || !errors.Is(w.err, pglimit.ErrWaitTooLong) || w.decision.RetryAfter != 100*ms || w.decision.Granted != 0 {
				t.Errorf("%+v", w)
			}
		}
		if len(s.taken) != 1 {
			t.Errorf("%d calls: the memory knows that 50 ms are not enough", len(s.taken))
		}
		if w := waitN(t, limiter, "k", 1, time.Hour); w.over.Load() { // it is due after 100 ms, which MaxWait allows
			t.Errorf("%+v", w)
		}
		w := waitN(t, limiter, "k", 1, time.Hour)
		if !w.over.Load() || !errors.Is(w.err, pglimit.ErrWaitTooLong) {
			t.Errorf("%+v", w)
		}
		if len(s.taken) != 2 { // due after 200 ms, which the memory knows
			t.Errorf("%d calls", len(s.taken))
		}
		if owed := s.owes("k", limiter.Limit()); owed != 2000 {
			t.Errorf("%d thousandths of a token are owed, want 2 tokens", owed)
		}
		later(time.Second)
		var none pglimit.Decision
		ended, cancel := context.WithTimeout(t.Context(), -1)
		defer cancel()
		if d, err := limiter.Wait(ended, "k"); !errors.Is(err, context.DeadlineExceeded) || d != none {
			t.Errorf("%+v, %v", d, err)
		}
		cancelled, cancel := context.WithTimeout(t.Context(), time.Hour)
		cancel()
		asked := len(s.taken)
		if d, err := limiter.Wait(cancelled, "k"); !errors.Is(err, context.Canceled) || d != none {
			t.Errorf("%+v, %v", d, err)
		}
		if synctest.Wait(); len(s.taken) != asked {
			t.Errorf("asked for somebody who had left before: %+v", s.taken[asked:])
		}
		if _, err := waiting(t, s, nil).Wait(t.Context(), "k"); err == nil || !strings.Contains(err.Error(), "a wait without end: give the context of Wait a deadline, or set Config.MaxWait") {
			t.Error(err)
		}
		var request *pglimit.RequestError
		for _, n := range []int64{-1, 0, 2} {
			if _, err := limiter.WaitN(t.Context(), "k", n); !errors.As(err, &request) || request.Field != "Tokens" {
				t.Errorf("%d: %v", n, err)
			}
		}
	})
}

// A closed Limiter lets nobody wait, whatever it knows of the key.
func TestNobodyWaitsOnAClosedLimiter(t *testing.T) {
	t.Parallel()
	memory := pglimittest.Memory()
	limiter, err := pglimit.New(memory.Pool(), memory, config(func(c *pglimit.Config) { c.Limit, c.Memory = hourly(1), pglimit.Memory{} }))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := limiter.Allow(t.Context(), "k"); err != nil {
			t.Error(err)
		}
	}
	if err := limiter.Close(t.Context()); err != nil {
		t.Error(err)
	}
	_, err = limiter.Do(t.Context(), pglimit.Request{Key: "k", Tokens: 1, MaxWait: time.Minute})
	if !errors.Is(err, pglimit.ErrClosed) || limiter.Stats().Failed[pglimit.CauseClosed] != 1 {
		t.Errorf("%v, %+v", err, limiter.Stats())
	}
}

// How long a caller would wait does not bound the round trip, which is as slow as it is.
func TestMaxWaitBoundsTheWaitOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		s.latency = 20 * ms
		limiter := waiting(t, s, func(c *pglimit.Config) { c.MaxWait = 150 * ms })
		if d, err := limiter.Do(t.Context(), pglimit.Request{Key: "k", Tokens: 1, MaxWait: 1}); err != nil || !d.Allowed {
			t.Errorf("%+v, %v", d, err)
		}
		// It is decided 40 ms after the grant, of which a token is due after 100 ms.
		if d, err := limiter.Do(t.Context(), pglimit.Request{Key: "k", Tokens: 1, MaxWait: 59 * ms}); !errors.Is(err, pglimit.ErrWaitTooLong) || d.Granted != 0 {
			t.Errorf("%+v, %v", d, err)
		}
		if d, err := limiter.Do(t.Context(), pglimit.Request{Key: "k", Tokens: 1, MaxWait: 81 * ms}); err != nil || d.Granted != 1 {
			t.Errorf("%+v, %v", d, err)
		}
		limiter.Do(t.Context(), pglimit.Request{Key: "k", Tokens: 1, MaxWait: time.Hour}) //nolint:errcheck // whatever is left of it
		if d, err := limiter.Do(t.Context(), pglimit.Request{Key: "k", Tokens: 1, MaxWait: time.Hour}); err != nil || d.Delay > 150*ms {
			t.Errorf("%+v, %v", d, err)
		}
		var request *pglimit.RequestError
		if _, err := limiter.Do(t.Context(), pglimit.Request{Key: "k", Tokens: 1, MaxWait: -1}); !errors.As(err, &request) || request.Field != "MaxWait" {
			t.Error(err)
		}
	})
}

// Without Postgres OnError decides: what it grants may be used at once; nobody can wait in turn.
func TestWaitWithoutPostgres(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		onError func(context.Context, pglimit.Failure) (pglimit.Decision, error)
		want    error
	}{
		"FailOpen":   {pglimit.FailOpen, nil},
		"FailClosed": {pglimit.FailClosed, pglimit.ErrUnavailable},
		"none":       {nil, errDown},
	} {
		s := newStore()
		s.memory.Fail(errDown)
		limiter := waiting(t, s, func(c *pglimit.Config) { c.OnError, c.MaxWait = test.onError, time.Hour })
		if d, err := limiter.Wait(t.Context(), "k"); !errors.Is(err, test.want) || d.Allowed != (err == nil) {
			t.Errorf("%s: %+v, %v", name, d, err)
		}
	}
}

// A strategy that cannot reserve, and a transaction, are refused with a sentence what to use.
func TestWhoCannotWaitOrReserve(t *testing.T) {
	t.Parallel()
	plain := newLimiter(t, &fake{}, func(c *pglimit.Config) { c.MaxWait = time.Hour })
	_, wait := plain.Wait(t.Context(), "k")
	_, reserve := plain.Reserve(t.Context(), "k")
	_, take := plain.DoEach(t.Context(), pglimit.Request{Key: "k", Tokens: 1, Ahead: 1})
	able := waiting(t, newStore(), func(c *pglimit.Config) { c.MaxWait = time.Hour })
	_, inTx := able.On(pglimit.InTx(pglimitTx{})).Wait(t.Context(), "k")
	for name, err := range map[string]error{"Wait": wait, "Reserve": reserve, "Take": take, "InTx": inTx} {
		if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "token_bucket, upsert and warm_up can") == (name != "InTx") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A hook that panics in a caller of Wait, whom somebody recovers, leaves nothing reserved.
func TestAHookThatPanicsLeavesTheLine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		bad := false
		limiter := waiting(t, s, func(c *pglimit.Config) {
			c.OnDecision = func(context.Context, pglimit.Request, pglimit.Decision, error) {
				if bad {
					panic("a bug of the user's")
				}
			}
		})
		waitN(t, limiter, "k", 1, time.Hour)
		bad = true
		func() {
			defer func() { _ = recover() }()
			_, _ = limiter.Do(t.Context(), pglimit.Request{Key: "k", Tokens: 1, MaxWait: time.Hour})
		}()
		synctest.Wait()
		if stats := limiter.Stats(); stats.Asleep != 0 || stats.GivenBack != 1 {
			t.Errorf("%+v", stats)
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

// A request that waits may have a limit and a Limiter name of its own.
func TestDoWaitsUnderALimitOfTheRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limiter := waiting(t, newStore(), nil)
		r := pglimit.Request{Limiter: "other", Key: "k", Limit: pglimit.Every(time.Minute), Tokens: 1, MaxWait: time.Hour}
		began := time.Now()
		for range 3 {
			if d, err := limiter.Do(t.Context(), r); err != nil || !d.Allowed || d.Limiter != "other" || d.Limit != r.Limit {
				t.Errorf("%+v, %v", d, err)
			}
		}
		if took := time.Since(began); took < 2*time.Minute || took > 2*time.Minute+time.Second {
			t.Errorf("three of one a minute took %v", took)
		}
	})
}

func ExampleLimiter_Wait() {
	limiter, err := pglimittest.New(pglimittest.MemoryOn(time.Now), pglimit.Config{ // in production: pglimit.New(pool, strategies.TokenBucket{}, …)
		Name:    "mails",
		Limit:   pglimit.PerSecond(20).WithBurst(1),
		MaxWait: time.Minute,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	began := time.Now()
	for range 3 {
		if _, err := limiter.Wait(context.Background(), "smtp.example.com"); err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("sent")
	}
	fmt.Println("which took 100 ms or more:", time.Since(began) >= 100*time.Millisecond)
	// Output:
	// sent
	// sent
	// sent
	// which took 100 ms or more: true
}
