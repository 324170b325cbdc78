package pglimit_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
)

// Some of those who waited have their answers already: from the memory, from a call for
// their bucket alone, or they wait in the lane of a held key. Who is left leaves, and the
// call is given up.
func TestACallIsGivenUpThoughOthersWereAnsweredMeanwhile(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		batch error // of the call for several buckets
		alone error // of the one for "a"
	}{
		"from the memory":    {},
		"alone":              {batch: pglimit.ErrNothingTaken},
		"alone, by an error": {batch: pglimit.ErrNothingTaken, alone: pglimit.ErrNothingTaken},
		"later, being held":  {batch: pglimit.ErrNothingTaken, alone: fmt.Errorf("%w, %w", pglimit.ErrLocked, pglimit.ErrNothingTaken)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				hangs := make(chan struct{})
				var ended time.Time
				var calls atomic.Int64
				s := &fake{}
				s.take = func(ctx context.Context, requests []pglimit.Request) ([]pglimit.Decision, error) {
					if calls.Add(1) == 1 {
						<-hangs // until the others wait behind it
						return answer(pglimit.Decision{Allowed: true, Granted: 1, RetryAfter: time.Minute})(ctx, requests)
					}
					time.Sleep(time.Millisecond)
					switch {
					case !requests[0].Impatient:
						return grantAll(ctx, requests)
					case len(requests) > 1:
						return nil, test.batch
					case requests[0].Key == "b":
						<-ctx.Done()
						ended = time.Now()
						return nil, ctx.Err()
					}
					return []pglimit.Decision{{Allowed: true, Granted: 1}}, test.alone
				}
				c := combining(t, s, func(c *pglimit.Config) { c.Memory.Off = test.batch != nil })
				c.ask(t.Context(), "a", 1)
				ctx, leave := context.WithCancel(t.Context())
				a, b := c.ask(t.Context(), "a", 1), c.ask(ctx, "b", 1)
				close(hangs)
				later(100 * time.Millisecond)
				if b.err == nil || calls.Load() < 2 {
					t.Fatalf("%+v, %+v, %d calls", a, b, calls.Load())
				}
				left := time.Now()
				leave()
				later(2 * time.Second)
				if took := ended.Sub(left); took != time.Second {
					t.Errorf("given up after %v", took)
				}
				if failed := name == "alone, by an error"; failed != (a.err != nil) {
					t.Errorf("%+v", a)
				}
			})
		})
	}
}

// A process has one call under way for a key at most, and charges nobody who has left:
// in any lane, while rows are held and callers leave.
func TestOneKeyNeverHasTwoCallsUnderWay(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3) {
		synctest.Test(t, func(t *testing.T) {
			s := newTable(t) // which looks
			random := rand.New(rand.NewPCG(seed, 0))
			limiter := newLimiter(t, s, func(c *pglimit.Config) { c.Combine.Off, c.Combine.Lanes = false, 8 })
			var work sync.WaitGroup
			var heard atomic.Int64
			for range 3000 {
				key, patience := fmt.Sprint("k", random.IntN(20)), time.Duration(random.Int64N(int64(time.Second)))
				if random.IntN(100) == 0 {
					s.mu.Lock()
					held := s.held[key] != nil
					s.mu.Unlock()
					if !held {
						time.AfterFunc(time.Duration(random.Int64N(int64(300*time.Millisecond))), s.hold(key))
					}
				}
				work.Go(func() {
					ctx := t.Context()
					if patience < 200*time.Millisecond {
						var cancel context.CancelFunc
						ctx, cancel = context.WithTimeout(ctx, patience)
						defer cancel()
					}
					d, err := limiter.Allow(ctx, key)
					if err != nil && ctx.Err() == nil {
						t.Error(err)
					}
					heard.Add(d.Granted)
				})
				time.Sleep(time.Duration(random.Int64N(int64(400 * time.Microsecond))))
			}
			work.Wait()
			if err := limiter.Close(t.Context()); err != nil {
				t.Error(err)
			}
			var back int64
			for _, refund := range s.refunds {
				back += refund.Tokens
			}
			if taken := s.granted.Load(); heard.Load()+back != taken || back == 0 || s.mostWait == 0 {
				t.Errorf("taken %d, heard %d, given back %d; %d waited", taken, heard.Load(), back, s.mostWait)
			}
		})
	}
}
