package pglimit_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
)

// A key whose row somebody holds for 4 s stalls those who ask for it, and nobody else.
func TestAHeldKeyStallsNobodyElse(t *testing.T) {
	t.Parallel()
	for _, timeout := range []time.Duration{pglimit.NoTimeout, 200 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			s := newTable(t)
			limiter := newLimiter(t, s, func(c *pglimit.Config) { c.Combine.Off, c.Timeout = false, timeout })
			release := s.hold("k7")
			time.AfterFunc(4*time.Second, release)
			var mu sync.Mutex
			var took []time.Duration
			end := time.Now().Add(5 * time.Second)
			random := rand.New(rand.NewPCG(1, 2))
			var work sync.WaitGroup
			for range 5000 {
				key := fmt.Sprint("k", random.IntN(200))
				work.Go(func() {
					began := time.Now()
					d, err := limiter.Allow(t.Context(), key)
					if key == "k7" {
						if timeout == pglimit.NoTimeout && err != nil {
							t.Errorf("%s: %v", key, err)
						}
						return
					}
					if err != nil || !d.Allowed {
						t.Errorf("%s: %+v, %v", key, d, err)
					}
					mu.Lock()
					defer mu.Unlock()
					took = append(took, time.Since(began))
				})
				time.Sleep(time.Duration(random.Int64N(int64(2 * time.Millisecond))))
			}
			work.Wait()
			if !time.Now().After(end.Add(-time.Second)) {
				t.Fatal("the lock was held for longer than somebody asked")
			}
			slices.Sort(took)
			if p99, worst := took[len(took)*99/100], took[len(took)-1]; p99 > 5*time.Millisecond || worst > 80*time.Millisecond {
				t.Errorf("99 of 100 had their answers within %v, all within %v", p99, worst)
			}
		})
	}
}

// answers are the numbers of the callers who have theirs.
type answers struct {
	mu    sync.Mutex
	order []int
}

// inTurn asks for one token of the key, a moment after the last one.
func (a *answers) inTurn(ctx context.Context, t *testing.T, limiter *pglimit.Limiter, key string, number int, tokens int64) {
	go func() {
		if _, err := limiter.AllowN(ctx, key, tokens); err != nil {
			if ctx.Err() == nil {
				t.Errorf("number %d: %v", number, err)
			}
			return
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		a.order = append(a.order, number)
	}()
	later(100 * time.Microsecond)
}

// The callers of a held key wait in one line: those who were in the batch that found
// it held, those who waited behind it, and those who came later.
func TestCallersOfAHeldKeyStayInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newTable(t)
		var sent [][]pglimit.Request // to the own lane
		s.take = func(ctx context.Context, requests []pglimit.Request) ([]pglimit.Decision, error) {
			decisions, err := s.decide(ctx, requests)
			if err == nil && requests[0].Key == "a" { // one call at a time
				sent = append(sent, slices.Clone(requests))
			}
			return decisions, err
		}
		limiter := newLimiter(t, s, func(c *pglimit.Config) { c.Combine.Off, c.Combine.Lanes = false, 1 })
		release := s.hold("a")
		var a, b answers
		gone, leave := context.WithCancel(t.Context())
		b.inTurn(t.Context(), t, limiter, "b", -1, 1)
		for i := range 10 { // half of them are in the next batch, half behind it
			ctx := t.Context()
			if i == 2 || i == 7 {
				ctx = gone
			}
			a.inTurn(ctx, t, limiter, "a", i, int64(1+i))
			b.inTurn(t.Context(), t, limiter, "b", i, 1)
		}
		leave()
		later(50 * time.Millisecond)
		for i := range 5 {
			a.inTurn(t.Context(), t, limiter, "a", 10+i, int64(11+i))
		}
		if len(b.order) != 11 {
			t.Fatalf("%d of 11 callers of another key have their answers", len(b.order))
		}
		if len(a.order) > 0 {
			t.Fatalf("%v have answers for a key that is held", a.order)
		}
		release()
		later(50 * time.Millisecond)
		var tokens []int64
		for _, requests := range sent {
			for _, r := range requests {
				tokens = append(tokens, r.Tokens)
			}
		}
		if want := []int64{1, 2, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15}; !slices.Equal(tokens, want) {
			t.Errorf("sent %v, want %v", tokens, want)
		}
		if len(a.order) != 13 {
			t.Errorf("%v have answers", a.order)
		}
	})
}

// When nobody holds it any more, a key is combined with others again, though its callers never
// stop to come.
func TestAKeyIsBackInItsLaneWhenItIsReleased(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newTable(t)
		limiter := newLimiter(t, s, func(c *pglimit.Config) { c.Combine.Off, c.Combine.Lanes = false, 1 })
		release := s.hold("a")
		var work sync.WaitGroup
		end := time.Now().Add(time.Second)
		for i := range 40 {
			work.Go(func() {
				random := rand.New(rand.NewPCG(uint64(i), 0))
				for time.Now().Before(end) {
					if _, err := limiter.Allow(t.Context(), []string{"a", "b"}[random.IntN(2)]); err != nil {
						t.Error(err)
					}
				}
			})
		}
		later(200 * time.Millisecond)
		release()
		later(20 * time.Millisecond)
		s.mu.Lock()
		clear(s.alone)
		s.mu.Unlock()
		work.Wait()
		if alone := s.alone["a"]; alone > 120 { // of about 800 calls; some are by chance
			t.Errorf("it was asked for alone %d times after it was released", alone)
		}
	})
}

// Nor is anybody forgotten on the way back, where the ordinary lane is idle.
func TestCallersGoHomeWithTheirKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newTable(t)
		limiter := newLimiter(t, s, func(c *pglimit.Config) { c.Combine.Off = false })
		release := s.hold("a")
		c := callers{t, limiter}
		first := c.ask(t.Context(), "a", 1)
		later(50 * time.Millisecond)
		second := c.ask(t.Context(), "a", 1) // behind the patient call
		release()
		later(100 * time.Microsecond)
		third := c.ask(t.Context(), "a", 1) // behind the one that shows that it is released
		later(50 * time.Millisecond)
		for i, h := range []*heard{first, second, third} {
			if h.err != nil {
				t.Errorf("number %d: %v", i, h.err)
			}
		}
	})
}

// Where all callers of a held key have left, it does not get a lane of its own.
func TestAHeldKeyThatNobodyWaitsForAnyMore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newTable(t)
		limiter := newLimiter(t, s, func(c *pglimit.Config) { c.Combine.Off = false })
		release := s.hold("a")
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		_, _ = limiter.Allow(ctx, "a")
		later(50 * time.Millisecond)
		release()
		if _, err := limiter.Allow(t.Context(), "a"); err != nil {
			t.Error(err)
		}
		if len(s.taken) != 2 || !s.taken[1][0].Impatient {
			t.Errorf("asked %+v", s.taken)
		}
	})
}

// Of ten held keys two have a call that waits, the others wait for their turn; and those
// who give up make room.
func TestFewCallsWaitForHeldKeys(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newTable(t)
		limiter := newLimiter(t, s, func(c *pglimit.Config) { c.Combine.Off = false })
		var releases []func()
		var heard answers
		ctx, leave := context.WithCancel(t.Context())
		for i := range 10 {
			key := fmt.Sprint("k", i)
			releases = append(releases, s.hold(key))
			if i < 2 {
				heard.inTurn(ctx, t, limiter, key, i, 1)
				later(100 * time.Millisecond)
			} else {
				heard.inTurn(t.Context(), t, limiter, key, i, 1)
			}
		}
		later(time.Second)
		if s.waiting != 2 || s.mostWait != 2 {
			t.Errorf("%d calls wait, %d did", s.waiting, s.mostWait)
		}
		leave()
		for _, release := range releases[2:] {
			release()
		}
		later(2 * time.Second) // the first two are given up
		if len(heard.order) != 8 || s.mostWait != 2 {
			t.Errorf("%v have answers, %d calls waited", heard.order, s.mostWait)
		}
		synctest.Wait()
	}) // which fails if a goroutine is left
}
