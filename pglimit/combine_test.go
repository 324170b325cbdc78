package pglimit_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
)

// server is a strategy whose calls take as long as the test wants: each waits until it
// is let go.
type server struct {
	fake
	goOn chan struct{}
}

func newServer(take func(context.Context, []pglimit.Request) ([]pglimit.Decision, error)) *server {
	s := &server{goOn: make(chan struct{})}
	s.take = func(ctx context.Context, requests []pglimit.Request) ([]pglimit.Decision, error) {
		select {
		case <-s.goOn:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		return take(ctx, requests)
	}
	return s
}

// finish lets the call under way go, and waits until its answers are heard.
func (s *server) finish() {
	s.goOn <- struct{}{}
	synctest.Wait()
}

// asked is what the call number i was asked, such as "a:1 b:6/2".
func (s *server) asked(i int) string {
	var texts []string
	for _, r := range s.taken[i] {
		text := fmt.Sprintf("%s:%d", r.Key, r.Tokens)
		if r.Unit != r.Tokens {
			text += fmt.Sprintf("/%d", r.Unit)
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, " ")
}

// heard is what a caller was told.
type heard struct {
	pglimit.Decision
	err error
}

// callers ask one after another, each in a goroutine of its own.
type callers struct {
	t       *testing.T
	limiter *pglimit.Limiter
}

func (c callers) ask(ctx context.Context, key string, tokens int64) *heard {
	h := &heard{err: errors.New("no answer yet")}
	go func() {
		if tokens == 0 {
			h.Decision, h.err = c.limiter.Peek(ctx, key)
		} else {
			h.Decision, h.err = c.limiter.AllowN(ctx, key, tokens)
		}
	}()
	synctest.Wait()
	return h
}

// combining has one lane, so that every request meets the others.
func combining(t *testing.T, strategy pglimit.Strategy, change func(*pglimit.Config)) callers {
	return callers{t, newLimiter(t, strategy, func(c *pglimit.Config) {
		c.NoCombining, c.Lanes = false, 1
		if change != nil {
			change(c)
		}
	})}
}

// buckets is a take that grants what there is of each key, and refills nothing.
func buckets(tokens map[string]int64) func(context.Context, []pglimit.Request) ([]pglimit.Decision, error) {
	return func(_ context.Context, requests []pglimit.Request) ([]pglimit.Decision, error) {
		decisions := make([]pglimit.Decision, len(requests))
		for i, r := range requests {
			granted := min(r.Tokens, tokens[r.Key]) / r.Unit * r.Unit
			tokens[r.Key] -= granted
			used := r.Limit.Capacity() - tokens[r.Key]
			decisions[i] = pglimit.Decision{
				Allowed: granted > 0, Granted: granted, Remaining: tokens[r.Key],
				ResetAfter: time.Duration(used) * 100 * time.Millisecond, At: time.Unix(1000, 0),
			}
			if tokens[r.Key] < r.Unit {
				decisions[i].RetryAfter = time.Duration(r.Unit-tokens[r.Key]) * 100 * time.Millisecond
			}
		}
		return decisions, nil
	}
}

func TestWhatArrivesMeanwhileGoesOutTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(buckets(map[string]int64{"a": 3, "b": 20}))
		c := combining(t, s, nil)
		first := c.ask(t.Context(), "a", 1)
		if s.asked(0) != "a:1" {
			t.Errorf("at once: %s", s.asked(0))
		}
		others := []*heard{c.ask(t.Context(), "b", 2), c.ask(t.Context(), "a", 1), c.ask(t.Context(), "b", 2), c.ask(t.Context(), "a", 1), c.ask(t.Context(), "a", 1)}
		if len(s.taken) != 1 {
			t.Fatalf("%d calls while one is under way", len(s.taken))
		}
		s.finish()
		if !first.Allowed || first.err != nil {
			t.Errorf("first: %+v", first)
		}
		if s.asked(1) != "b:4/2 a:3/1" {
			t.Errorf("together: %s", s.asked(1))
		}
		s.finish()
		ms := time.Millisecond
		for i, want := range []pglimit.Decision{
			{Allowed: true, Granted: 2, Remaining: 18, ResetAfter: 200 * ms},
			{Allowed: true, Granted: 1, Remaining: 1, ResetAfter: 1900 * ms},
			{Allowed: true, Granted: 2, Remaining: 16, ResetAfter: 400 * ms},
			{Allowed: true, Granted: 1, Remaining: 0, RetryAfter: 100 * ms, ResetAfter: 2000 * ms},
			{RetryAfter: 100 * ms, ResetAfter: 2000 * ms}, // the last to come
		} {
			want.At = time.Unix(1000, 0)
			if got := others[i]; got.err != nil || got.Decision != want {
				t.Errorf("%d: %+v, %v\nwant %+v", i, got.Decision, got.err, want)
			}
		}
		stats := c.limiter.Stats()
		if stats.Decided != 6 || stats.RoundTrips != 2 || stats.Requests != 3 {
			t.Errorf("%+v", stats)
		}
	})
}

// The requests of a key stay in order: 1 token behind 3 must not be granted before them.
func TestMixedCostsStayInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(buckets(map[string]int64{"a": 20, "b": 20}))
		c := combining(t, s, nil)
		c.ask(t.Context(), "z", 1)
		for _, tokens := range []int64{1, 1, 3, 1, 0, 0, 1} {
			c.ask(t.Context(), "a", tokens)
			c.ask(t.Context(), "b", 1)
		}
		s.finish()
		if want := "a:2/1 b:7/1 a:3 a:1 a:0/1 a:1"; s.asked(1) != want {
			t.Errorf("%s, want %s", s.asked(1), want)
		}
		s.finish()
	})
}

// Twenty keys: more than are searched one by one.
func TestManyKeysAreFoundAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(buckets(map[string]int64{}))
		c := combining(t, s, nil)
		c.ask(t.Context(), "z", 1)
		for range 2 {
			for key := range 20 {
				c.ask(t.Context(), fmt.Sprint("k", key), 1)
			}
		}
		s.finish()
		if n := strings.Count(s.asked(1), ":2/1"); n != 20 || len(s.taken[1]) != 20 {
			t.Errorf("%s", s.asked(1))
		}
		s.finish()
	})
}

func TestACallerLeavesAtOnceAndIsNotChargedIfNothingWasSent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(buckets(map[string]int64{"a": 20}))
		c := combining(t, s, nil)
		c.ask(t.Context(), "a", 1)
		ctx, leave := context.WithCancel(t.Context())
		leaver, stays := c.ask(ctx, "a", 5), c.ask(t.Context(), "a", 2)
		leave()
		synctest.Wait()
		if leaver.err != context.Canceled { //nolint:errorlint // as it is, not wrapped
			t.Errorf("%+v", leaver)
		}
		s.finish()
		s.finish()
		if s.asked(1) != "a:2" || !stays.Allowed {
			t.Errorf("sent %s, %+v", s.asked(1), stays)
		}
	})
}

func TestTheTokensOfACallerWhoLeft(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		there  int64 // tokens of "a", after the first request
		queued []int64
		inTurn int // who hears that it is allowed: of the batch, behind the one who leaves
		later  int // and of those that are queued when the answer comes
		back   int64
		passed int64
	}{
		{name: "go to the next in the batch", there: 1, inTurn: 1},
		{name: "go to the next in the queue", there: 3, inTurn: 2, queued: []int64{1, 1}, later: 1, passed: 1},
		{name: "are given back if nobody wants them", there: 3, inTurn: 2, back: 1},
		{name: "and if who is next wants more", there: 3, inTurn: 2, queued: []int64{2, 1}, back: 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				there := map[string]int64{"z": 1, "a": test.there}
				s := newServer(buckets(there))
				c := combining(t, s, nil)
				c.ask(t.Context(), "z", 1)
				ctx, leave := context.WithCancel(t.Context())
				leaver := c.ask(ctx, "a", 1)
				batch := []*heard{c.ask(t.Context(), "a", 1), c.ask(t.Context(), "a", 1)}
				s.finish()
				if s.asked(1) != "a:3/1" {
					t.Fatal(s.asked(1))
				}
				var queue []*heard
				for _, tokens := range test.queued {
					queue = append(queue, c.ask(t.Context(), "a", tokens))
				}
				leave()
				synctest.Wait()
				if !errors.Is(leaver.err, context.Canceled) {
					t.Fatalf("did not leave: %+v", leaver)
				}
				s.finish()
				for i, h := range batch {
					if h.err != nil || h.Allowed != (i < test.inTurn) {
						t.Errorf("%d of the batch: %+v", i, h)
					}
				}
				for i, h := range queue {
					if h.Allowed != (i < test.later) {
						t.Errorf("%d of the queue: %+v", i, h)
					}
				}
				var back int64
				for _, refund := range s.refunds {
					back += refund.Tokens
					if refund.Key != "a" || refund.Limiter != "api" || refund.Limit != c.limiter.Limit() || !refund.At.Equal(time.Unix(1000, 0)) {
						t.Errorf("%+v", refund)
					}
				}
				stats := c.limiter.Stats()
				if back != test.back || stats.GivenBack != test.back || stats.PassedOnTokens != test.passed || stats.LostTokens != 0 {
					t.Errorf("%d given back, %+v", back, stats)
				}
				if test.later < len(test.queued) {
					s.finish()
				}
			})
		})
	}
}

// A request for more, that was denied, gets what was granted to callers of an earlier
// request of the same call who have left, and before those behind it.
func TestTokensOfAnEarlierRequestGoToTheNextInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(buckets(map[string]int64{"z": 1, "a": 3}))
		c := combining(t, s, nil)
		c.ask(t.Context(), "z", 1)
		ctx, leave := context.WithCancel(t.Context())
		c.ask(ctx, "a", 3)
		two, three, one := c.ask(t.Context(), "a", 2), c.ask(t.Context(), "a", 3), c.ask(t.Context(), "a", 1)
		s.finish()
		if s.asked(1) != "a:3 a:2 a:3 a:1" {
			t.Fatal(s.asked(1))
		}
		leave()
		synctest.Wait()
		s.finish()
		if !two.Allowed || three.Allowed || !one.Allowed || len(s.refunds) > 0 {
			t.Errorf("%+v, %+v, %+v, given back %+v", two, three, one, s.refunds)
		}
	})
}

func TestTokensThatCannotBeGivenBackAreCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(buckets(map[string]int64{"a": 20}))
		s.giveBack = errDown
		c := combining(t, s, nil)
		ctx, leave := context.WithCancel(t.Context())
		c.ask(ctx, "a", 5)
		leave()
		synctest.Wait()
		s.finish()
		if stats := c.limiter.Stats(); stats.LostTokens != 5 || stats.GivenBack != 0 {
			t.Errorf("%+v", stats)
		}
	})
}

func TestAFailingCallFailsItsOwnCallersOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(nil)
		calls := 0
		grant := buckets(map[string]int64{"a": 20, "b": 20})
		s.take = func(ctx context.Context, requests []pglimit.Request) ([]pglimit.Decision, error) {
			<-s.goOn
			if calls++; calls == 2 {
				return nil, errDown
			}
			return grant(ctx, requests)
		}
		c := combining(t, s, nil)
		before := c.ask(t.Context(), "a", 1)
		fails := []*heard{c.ask(t.Context(), "a", 1), c.ask(t.Context(), "b", 1)}
		s.finish()
		after := c.ask(t.Context(), "a", 1)
		s.finish()
		s.finish()
		if before.err != nil || after.err != nil || !after.Allowed {
			t.Errorf("%+v, %+v", before, after)
		}
		for _, h := range fails {
			if h.err != errDown { //nolint:errorlint // as it is, not wrapped
				t.Errorf("%+v", h)
			}
		}
	})
}

func TestWhatWaitsIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(buckets(map[string]int64{"a": 20}))
		c := combining(t, s, func(c *pglimit.Config) { c.MaxWaiting = 3 })
		ctx, leave := context.WithCancel(t.Context())
		one, two, three := c.ask(t.Context(), "a", 1), c.ask(ctx, "a", 1), c.ask(t.Context(), "a", 1)
		if four := c.ask(t.Context(), "a", 1); !errors.Is(four.err, pglimit.ErrOverloaded) {
			t.Errorf("%+v", four)
		}
		leave()
		synctest.Wait()
		five := c.ask(t.Context(), "a", 1) // in the place of the one who left
		s.finish()
		s.finish()
		if !one.Allowed || two.err == nil || !three.Allowed || !five.Allowed {
			t.Errorf("%+v %+v %+v %+v", one, two, three, five)
		}
		six := c.ask(t.Context(), "a", 1)
		s.finish()
		if !six.Allowed {
			t.Errorf("%+v", six)
		}
	})
}

// Who has its answer does not count as waiting: it may ask again at once.
func TestAsManyAsMayWaitAreNeverTurnedAway(t *testing.T) {
	t.Parallel()
	const most = 4
	limiter := newLimiter(t, &fake{}, func(c *pglimit.Config) { c.NoCombining, c.MaxWaiting = false, most })
	var work sync.WaitGroup
	for range most {
		work.Go(func() {
			for range 20_000 {
				if _, err := limiter.Allow(t.Context(), "a"); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	work.Wait()
}

func TestASlowKeyHoldsUpItsLaneOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stuck := make(chan struct{})
		s := &fake{take: func(_ context.Context, requests []pglimit.Request) ([]pglimit.Decision, error) {
			if requests[0].Key == "slow" {
				<-stuck
			}
			return []pglimit.Decision{{Allowed: true, Granted: 1}}, nil
		}}
		c := combining(t, s, func(c *pglimit.Config) { c.Lanes = 8 })
		slow := c.ask(t.Context(), "slow", 1)
		answered := 0
		var waiting []*heard
		for key := range 100 {
			if h := c.ask(t.Context(), fmt.Sprint("k", key), 1); h.err == nil {
				answered++
			} else {
				waiting = append(waiting, h)
			}
		}
		if slow.err == nil || answered < 60 || answered == 100 {
			t.Errorf("%d of 100 keys were answered while one in 8 lanes is stuck", answered)
		}
		s.take = answer(pglimit.Decision{Allowed: true, Granted: 100})
		close(stuck)
		synctest.Wait()
		for _, h := range append(waiting, slow) {
			if !h.Allowed {
				t.Errorf("%+v", h)
			}
		}
	})
}

// Nobody waits for a call that is stuck: it is given up, and its lane goes on.
func TestACallThatNobodyWaitsForIsGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(buckets(map[string]int64{"a": 20}))
		c := combining(t, s, func(c *pglimit.Config) { c.Timeout = 100 * time.Millisecond })
		began := time.Now()
		lost := c.ask(t.Context(), "a", 1)
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		if lost.err == nil || !strings.Contains(lost.err.Error(), "Config.Timeout (100ms)") {
			t.Errorf("%+v", lost)
		}
		for len(s.taken) == 1 && time.Since(began) < time.Minute { // it asks again and again
			c.ask(t.Context(), "a", 1)
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
		}
		if took := time.Since(began); took > 1500*time.Millisecond {
			t.Errorf("the lane was stuck for %v", took)
		}
		s.finish()
	})
}

func TestACallCarriesWhatTheFirstContextCarries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		strategy := &fake{}
		c := combining(t, strategy, nil)
		ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), key{}, "trace"), time.Hour)
		defer cancel()
		c.ask(ctx, "a", 1)
		if strategy.ctx.Value(key{}) != "trace" {
			t.Error("the trace was lost")
		}
		if _, limited := strategy.ctx.Deadline(); limited {
			t.Error("the call ends with its first caller")
		}
	})
}

func TestCloseAnswersThoseWhoWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(buckets(map[string]int64{"a": 20}))
		c := combining(t, s, nil)
		one, two := c.ask(t.Context(), "a", 1), c.ask(t.Context(), "a", 2)
		closed := make(chan error, 1)
		go func() { closed <- c.limiter.Close(t.Context()) }()
		synctest.Wait()
		if late := c.ask(t.Context(), "a", 1); !errors.Is(late.err, pglimit.ErrClosed) {
			t.Errorf("%+v", late)
		}
		s.finish()
		s.finish()
		if err := <-closed; err != nil || !one.Allowed || !two.Allowed {
			t.Errorf("%v, %+v, %+v", err, one, two)
		}
	})
}

func TestCloseWaitsNoLongerThanItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(buckets(map[string]int64{"a": 20}))
		c := combining(t, s, nil)
		one, two := c.ask(t.Context(), "a", 1), c.ask(t.Context(), "a", 2)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		err := c.limiter.Close(ctx)
		synctest.Wait()
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		if !errors.Is(one.err, context.Canceled) || !errors.Is(two.err, pglimit.ErrClosed) {
			t.Errorf("%v, %v", one.err, two.err)
		}
		if len(s.taken) != 1 {
			t.Errorf("%d calls", len(s.taken))
		}
	}) // which fails if a goroutine is left
}

func TestAfterCloseNothingIsSent(t *testing.T) {
	t.Parallel()
	for _, alone := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := &fake{}
			limiter := newLimiter(t, f, func(c *pglimit.Config) { c.NoCombining = alone })
			if _, err := limiter.Allow(t.Context(), "a"); err != nil {
				t.Error(err)
			}
			synctest.Wait()
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			if err := limiter.Close(ended); err != nil {
				t.Errorf("nobody had to wait: %v", err)
			}
			if _, err := limiter.Allow(t.Context(), "a"); !errors.Is(err, pglimit.ErrClosed) {
				t.Error(err)
			}
			if len(f.taken) != 1 {
				t.Errorf("%d calls", len(f.taken))
			}
		})
	}
}

func TestABatchIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(buckets(map[string]int64{}))
		c := combining(t, s, nil)
		c.ask(t.Context(), "z", 1)
		for range 1500 {
			go func() { _, _ = c.limiter.Allow(t.Context(), "a") }()
		}
		synctest.Wait()
		s.finish()
		if s.asked(1) != "a:1024/1" {
			t.Error(s.asked(1))
		}
		s.finish()
		s.finish()
		if s.asked(2) != "a:476/1" {
			t.Error(s.asked(2))
		}
	})
}

// In a transaction of the caller's, or on a single connection, each request goes out by
// itself, as the caller sends it.
func TestNothingIsCombinedOrRememberedInATransaction(t *testing.T) {
	t.Parallel()
	type tx struct{ pglimitTx }
	strategy := &fake{take: answer(pglimit.Decision{RetryAfter: time.Hour})}
	limiter, err := pglimit.New(tx{}, strategy, pglimit.Config{Name: "api", Limit: pglimit.PerSecond(10)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	for range 2 {
		if _, err := limiter.Allow(ctx, "k"); err != nil {
			t.Error(err)
		}
	}
	if len(strategy.taken) != 2 || !reflect.DeepEqual(strategy.ctx, ctx) {
		t.Errorf("%d calls", len(strategy.taken))
	}
	if _, err := pglimit.New(tx{}, leasingFake{strategy}, pglimit.Config{Name: "api", Limit: pglimit.PerSecond(10), Leases: true}); err == nil {
		t.Error("leases in a transaction")
	}
}
