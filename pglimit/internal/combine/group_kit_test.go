package combine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit/internal/claims"
	"github.com/pglimit/ratelimit/pglimit/internal/combine"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// groupCalls are what the Lane groupCalls: they do as the test says, and remember what they were asked. As
// they are, they grant everything and know of no denial.
type groupCalls struct {
	send     func(ctx context.Context, groups [][]rate.Request) error // nil: all are granted
	giveBack func(ctx context.Context) error
	recall   func(group []rate.Request) bool

	mu      sync.Mutex
	asked   []string // such as "a+b c" of each call; with a "!" if it is patient
	refunds []string
}

func (c *groupCalls) lane() *combine.Combiner {
	var learned atomic.Uint64
	return combine.New(1, combine.Functions{
		Send: func(ctx context.Context, requests []rate.Request) ([]rate.Decision, error) {
			groups := groupsOf(requests)
			c.mu.Lock()
			c.asked = append(c.asked, groupText(groups))
			c.mu.Unlock()
			if c.send != nil {
				if err := c.send(ctx, groups); err != nil {
					return nil, err
				}
			}
			return grant(requests), nil
		},
		GiveBack: func(ctx context.Context, refunds []rate.Refund) error {
			c.mu.Lock()
			for _, r := range refunds {
				c.refunds = append(c.refunds, fmt.Sprintf("%s:%d", r.Key, r.Tokens))
			}
			c.mu.Unlock()
			if c.giveBack != nil {
				return c.giveBack(ctx)
			}
			return nil
		},
		Learned: func() uint64 { return learned.Add(1) },
		Recall:  func(group []rate.Request, _ []rate.Decision) bool { return c.recall != nil && c.recall(group) },
	})
}

// groupsOf divides the requests of a call.
func groupsOf(requests []rate.Request) (groups [][]rate.Request) {
	for i, r := range requests {
		if i == 0 || r.Group != requests[i-1].Group {
			groups = append(groups, nil)
		}
		groups[len(groups)-1] = append(groups[len(groups)-1], r)
	}
	return groups
}

// decideGroup asks about a group.
func decideGroup(ctx context.Context, c *combine.Combiner, group []rate.Request) ([]rate.Decision, error) {
	u := &claims.Claim{Requests: group, Decisions: make([]rate.Decision, len(group))}
	c.Decide(ctx, []*claims.Claim{u})
	return u.Decisions, u.Err
}

func groupText(groups [][]rate.Request) string {
	var texts []string
	for _, group := range groups {
		var keys []string
		for _, r := range group {
			keys = append(keys, r.Key)
		}
		text := strings.Join(keys, "+")
		if len(groups) == 1 && !group[0].Impatient {
			text += "!"
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, " ")
}

// groupOf is the group "a+b".
func groupOf(keys string) (group []rate.Request) {
	for key := range strings.SplitSeq(keys, "+") {
		group = append(group, rate.Request{Limiter: "test", Key: key, Limit: rate.PerHour(1000), Tokens: 2, Unit: 2, Group: 1})
	}
	return group
}

// heard is what a caller was told.
type heardGroup struct {
	mu        sync.Mutex
	decisions []rate.Decision
	err       error
}

func (h *heardGroup) told() ([]rate.Decision, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.decisions, h.err
}

// ask in a goroutine of its own, behind all who have asked before.
func askGroup(ctx context.Context, l *combine.Combiner, group []rate.Request) *heardGroup {
	h := &heardGroup{err: errNoAnswer}
	go func() {
		decisions, err := decideGroup(ctx, l, group)
		h.mu.Lock()
		defer h.mu.Unlock()
		h.decisions, h.err = decisions, err
	}()
	synctest.Wait()
	return h
}

func (h *heardGroup) granted(t *testing.T) {
	t.Helper()
	if decisions, err := h.told(); err != nil || len(decisions) == 0 || decisions[0].Granted != 2 {
		t.Errorf("%+v, %v: want a grant", decisions, err)
	}
}

// wants an error, such as errNoAnswer.
func (h *heardGroup) wants(t *testing.T, want error) {
	t.Helper()
	if decisions, err := h.told(); !errors.Is(err, want) {
		t.Errorf("%+v, %v: want %v", decisions, err, want)
	}
}

func (c *groupCalls) wants(t *testing.T, asked ...string) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Equal(c.asked, asked) {
		t.Errorf("asked %q, want %q", c.asked, asked)
	}
}

// slowGroup is a send that takes a second.
func slowGroup(context.Context, [][]rate.Request) error {
	time.Sleep(time.Second)
	return nil
}
