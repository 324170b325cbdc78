package pglimit_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
)

// A key at fault fails its own callers, whether few or many others are in the same call.
func TestOneCallersFaultIsHisAlone(t *testing.T) {
	t.Parallel()
	for _, keys := range []int{2, 9, 40, 700} {
		synctest.Test(t, func(t *testing.T) {
			errEncoding := fmt.Errorf("%w: not in EUC_JP", pglimit.ErrNothingTaken)
			s := newTable(t)
			s.bad["k1"] = errEncoding
			c := combining(t, s, nil)
			c.ask(t.Context(), "z", 1)
			var heards []*heard
			for range 3 {
				for key := range min(keys, 300) {
					heards = append(heards, c.ask(t.Context(), fmt.Sprint("k", key), 1))
				}
			}
			for key := 300; key < keys; key++ {
				heards = append(heards, c.ask(t.Context(), fmt.Sprint("k", key), 1))
			}
			later(time.Second)
			failed := 0
			for i, h := range heards {
				switch {
				case errors.Is(h.err, errEncoding):
					failed++
				case h.err != nil || !h.Allowed:
					t.Errorf("%d of %d keys: %+v", i, keys, h)
				}
			}
			if stats := c.limiter.Stats(); failed != 3 || stats.LostTokens != 0 || int(decided(stats)) != len(heards)-3+1 {
				t.Errorf("%d keys: %d callers failed, %+v", keys, failed, stats)
			}
			if keys == 9 {
				if want := "k0:3/1 k1:3/1 k2:3/1"; len(s.asked(1)) < len(want) || s.asked(1)[:len(want)] != want || s.asked(2) != "k0:3/1" || s.asked(3) != "k1:3/1" {
					t.Errorf("asked %s, then %s, %s", s.asked(1), s.asked(2), s.asked(3))
				}
			}
			if len(s.taken) > 2+32+keys/32+1 {
				t.Errorf("%d calls for %d keys", len(s.taken), keys)
			}
		})
	}
}

// A call that failed for no bucket's sake is not made again for each of them.
func TestAnOutageIsNotAskedAboutKeyByKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(nil)
		calls := 0
		s.take = func(ctx context.Context, requests []pglimit.Request) ([]pglimit.Decision, error) {
			<-s.goOn
			switch calls++; calls {
			case 2: // of the batch
				return nil, pglimit.ErrNothingTaken
			case 4: // the second of those for one bucket
				return nil, errDown
			}
			return grantAll(ctx, requests)
		}
		c := combining(t, s, nil)
		c.ask(t.Context(), "z", 1)
		var heards []*heard
		for _, key := range []string{"a", "b", "c", "d"} {
			heards = append(heards, c.ask(t.Context(), key, 1))
		}
		for range 4 {
			s.finish()
		}
		for i, h := range heards {
			if i == 0 && !h.Allowed || i > 0 && !errors.Is(h.err, errDown) {
				t.Errorf("number %d: %+v", i, h)
			}
		}
		if calls != 4 {
			t.Errorf("%d calls", calls)
		}
	})
}

// Of those who leave while others of their batch are asked for, nothing is taken; and what
// was taken for them is given back.
func TestLeavingABatchThatIsAskedForApart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(nil)
		grant := buckets(map[string]int64{"z": 1, "a": 5, "b": 5, "c": 5})
		s.take = func(ctx context.Context, requests []pglimit.Request) ([]pglimit.Decision, error) {
			<-s.goOn
			if len(requests) == 3 {
				return nil, pglimit.ErrNothingTaken
			}
			return grant(ctx, requests)
		}
		c := combining(t, s, nil)
		c.ask(t.Context(), "z", 1)
		ctx, leave := context.WithCancel(t.Context())
		c.ask(ctx, "a", 2)
		c.ask(ctx, "b", 2)
		stays := c.ask(t.Context(), "c", 2)
		s.finish()
		s.finish() // the batch: now it is a's turn
		leave()
		synctest.Wait()
		s.finish()
		s.finish()
		if s.asked(2) != "a:2" || s.asked(3) != "c:2" || len(s.taken) != 4 || !stays.Allowed {
			t.Errorf("asked %s, %s, %d calls, %+v", s.asked(2), s.asked(3), len(s.taken), stays)
		}
		if stats := c.limiter.Stats(); stats.GivenBack != 2 || stats.LostTokens != 0 {
			t.Errorf("%+v", stats)
		}
	})
}
