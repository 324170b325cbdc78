package combine_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// A group that finds the lane idle goes out at once. Those that arrive meanwhile are the next
// call, in order, unless one has another limit for a bucket, or they are too many.
func TestGroupsThatArriveDuringACallAreTheNext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &groupCalls{send: slowGroup}
		l := c.lane()
		other := groupOf("x+b")
		other[1].Limit = rate.PerHour(5)
		large := groupOf("y0")
		for i := range 1023 {
			large = append(large, groupOf(fmt.Sprint("y", i+1))...)
		}
		groups := [][]rate.Request{groupOf("a+b"), groupOf("b+c"), groupOf("d"), other, groupOf("e+x"), large, groupOf("f")}
		var heards []*heardGroup
		for _, g := range groups {
			heards = append(heards, askGroup(t.Context(), l, g))
		}
		later(10 * time.Second)
		for i, h := range heards {
			h.granted(t)
			if decisions, _ := h.told(); len(decisions) != len(groups[i]) {
				t.Errorf("group %d: %d decisions", i, len(decisions))
			}
		}
		c.wants(t, "a+b", "b+c d", "x+b e+x", strings.TrimSuffix(groupText([][]rate.Request{large}), "!"), "f")
		if err := l.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// After a call that took nothing, only the callers of the group to blame get an error.
func TestTheGroupToBlameFailsAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &groupCalls{send: func(_ context.Context, groups [][]rate.Request) error {
			for _, g := range groups {
				switch g[0].Key {
				case "first":
					time.Sleep(time.Second)
				case "bad":
					return rate.ErrNothingTaken
				}
			}
			return nil
		}}
		l := c.lane()
		heards := make(map[string]*heardGroup)
		for _, keys := range []string{"first", "a+x", "b+x", "bad+x", "c+x"} {
			heards[keys] = askGroup(t.Context(), l, groupOf(keys))
		}
		later(2 * time.Second)
		c.wants(t, "first", "a+x b+x bad+x c+x", "a+x", "b+x", "bad+x", "c+x")
		for keys, h := range heards {
			if keys == "bad+x" {
				h.wants(t, rate.ErrNothingTaken)
				continue
			}
			h.granted(t)
		}
	})
}

// Close lets callers have their answers, or gives them up: with their groupCalls, those in the queue
// and those who wait for a held row.
//
// Not parallel: it looks at all goroutines.
func TestCloseOfALane(t *testing.T) {
	for _, patient := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			r := &rows{named: true}
			c := &groupCalls{send: func(ctx context.Context, groups [][]rate.Request) error {
				if groups[0][0].Key != "hangs" {
					return r.send(ctx, groups)
				}
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(2 * time.Second):
					return nil
				}
			}}
			l := c.lane()
			free := r.hold("held")
			var heards []*heardGroup
			for _, keys := range []string{"held", "held+a", "hangs", "b"} {
				heards = append(heards, askGroup(t.Context(), l, groupOf(keys)))
				later(30 * time.Millisecond)
			}
			single := ask(t.Context(), l, "hangs", 1)
			time.AfterFunc(time.Second, free)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if !patient {
				cancel()
			}
			before := len(c.asked)
			err := l.Close(ctx)
			if patient != (err == nil) {
				t.Error(err)
			}
			synctest.Wait()
			if asked := c.asked[before:]; !patient && len(asked) > 0 {
				t.Errorf("asked %q for callers who were given up", asked)
			}
			for _, h := range heards {
				if patient {
					h.granted(t)
				} else {
					h.wants(t, rate.ErrClosed)
				}
			}
			if patient != single.Allowed || !patient && !errors.Is(single.err, rate.ErrClosed) {
				t.Errorf("%+v", single)
			}
			_, group := decideGroup(t.Context(), l, groupOf("a"))
			_, errs := decideAll(t.Context(), l, []rate.Request{request("a", 1), request("b", 1)})
			for _, err := range append(errs, group) {
				if !errors.Is(err, rate.ErrClosed) {
					t.Error(err)
				}
			}
			stacks := make([]byte, 1<<20)
			stacks = stacks[:runtime.Stack(stacks, true)]
			if strings.Contains(string(stacks), "combine.(*lane)") {
				t.Errorf("left is\n%s", stacks)
			}
			later(2 * time.Second)
		})
	}
}

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
			if r := c.refunds; len(r) != 2 || r[0].Key != "a" || r[0].Tokens != 2 || r[1].Key != "b" || r[1].Tokens != 2 {
				t.Errorf("given back: %+v", c.refunds)
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
			t.Errorf("given back: %+v", c.refunds)
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
