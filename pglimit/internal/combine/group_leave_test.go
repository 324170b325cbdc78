package combine_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// A caller who leaves before his group is sent is not charged. After it, each request is given
// back; what cannot be counts as lost.
func TestACallerWhoLeavesIsNotCharged(t *testing.T) {
	t.Parallel()
	for _, fails := range []error{nil, errors.New("away")} {
		synctest.Test(t, func(t *testing.T) {
			c := &groupCalls{send: slowGroup, giveBack: func(context.Context) error { return fails }}
			l := c.lane()
			ctx, cancel := context.WithCancel(t.Context())
			askGroup(t.Context(), l, groupOf("z"))
			sent := askGroup(ctx, l, groupOf("a+b"))
			later(time.Second)
			stays := askGroup(t.Context(), l, groupOf("a+c"))
			queued := askGroup(ctx, l, groupOf("a+d"))
			cancel()
			synctest.Wait()
			for _, h := range []*heardGroup{sent, queued} {
				h.wants(t, context.Canceled)
			}
			if _, err := decideGroup(ctx, l, groupOf("a")); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			later(5 * time.Second)
			stays.granted(t)
			c.wants(t, "z", "a+b", "a+c")
			if !slices.Equal(c.refunds, []string{"a:2", "b:2"}) {
				t.Errorf("given back: %q", c.refunds)
			}
			back, lost := int64(4), int64(0)
			if fails != nil {
				back, lost = lost, back
			}
			if l.Stats.GivenBack.Load() != back || l.Stats.Lost.Load() != lost {
				t.Errorf("%d given back, %d lost", l.Stats.GivenBack.Load(), l.Stats.Lost.Load())
			}
		})
	}
}

// A caller who left before his group was sent does not count as one who waits for the call.
func TestACallerWhoLeftTheQueueKeepsNoCallAlive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &groupCalls{send: func(ctx context.Context, groups [][]rate.Request) error {
			switch groups[0][0].Key {
			case "slowGroup":
				time.Sleep(time.Second)
			case "hangs":
				<-ctx.Done()
			}
			return ctx.Err()
		}}
		l := c.lane()
		soon, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		late, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		askGroup(t.Context(), l, groupOf("slowGroup+a"))
		askGroup(late, l, groupOf("hangs+a"))
		askGroup(soon, l, groupOf("leaves+a"))
		later(2500 * time.Millisecond)
		waits := askGroup(t.Context(), l, groupOf("b"))
		later(600 * time.Millisecond)
		waits.granted(t)
	})
}

// A caller who leaves during a call that takes nothing is not asked about again.
func TestACallerWhoLeavesIsNotAskedAboutAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &groupCalls{send: func(_ context.Context, groups [][]rate.Request) error {
			time.Sleep(time.Second)
			if len(groups) > 2 {
				return rate.ErrNothingTaken
			}
			return nil
		}}
		l := c.lane()
		askGroup(t.Context(), l, groupOf("first"))
		ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer cancel()
		stays := askGroup(t.Context(), l, groupOf("a"))
		leaves := askGroup(ctx, l, groupOf("b"))
		askGroup(t.Context(), l, groupOf("c"))
		later(10 * time.Second)
		stays.granted(t)
		leaves.wants(t, context.DeadlineExceeded)
		c.wants(t, "first", "a b c", "a", "c")
		if len(c.refunds) > 0 {
			t.Errorf("given back: %q", c.refunds)
		}
	})
}

// Of two groups whose call met a held row, one leaves. The other is not to blame for what both asked: it is asked
// about alone.
func TestACallerWhoStaysIsAskedAboutAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &groupCalls{send: func(_ context.Context, groups [][]rate.Request) error {
			time.Sleep(time.Second)
			if len(groups) > 1 {
				return errors.Join(rate.ErrNothingTaken, rate.ErrLocked)
			}
			return nil
		}}
		l := c.lane()
		askGroup(t.Context(), l, groupOf("first"))
		ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer cancel()
		stays, leaves := askGroup(t.Context(), l, groupOf("a")), askGroup(ctx, l, groupOf("b"))
		later(10 * time.Second)
		stays.granted(t)
		leaves.wants(t, context.DeadlineExceeded)
		c.wants(t, "first", "a b", "a")
	})
}
