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
