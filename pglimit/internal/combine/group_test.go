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
			if _, err := decideGroup(t.Context(), l, groupOf("a")); !errors.Is(err, rate.ErrClosed) {
				t.Error(err)
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
