package group_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit/internal/group"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// calls are what the Lane calls: they do as the test says, and remember what they were asked. As
// they are, they grant everything and know of no denial.
type calls struct {
	send     func(ctx context.Context, groups [][]rate.Request) error // nil: all are granted
	giveBack func(ctx context.Context) error
	recall   func(group []rate.Request) bool

	mu      sync.Mutex
	asked   []string // such as "a+b c" of each call; with a "!" if it is patient
	refunds []string
}

func (c *calls) lane() *group.Lane {
	return group.New(group.Calls{
		Send: func(ctx context.Context, groups [][]rate.Request) ([][]rate.Decision, error) {
			c.mu.Lock()
			c.asked = append(c.asked, text(groups))
			c.mu.Unlock()
			if c.send != nil {
				if err := c.send(ctx, groups); err != nil {
					return nil, err
				}
			}
			decisions := make([][]rate.Decision, len(groups))
			for i := range groups {
				for _, r := range groups[i] {
					decisions[i] = append(decisions[i], rate.Decision{Allowed: true, Granted: r.Tokens})
				}
			}
			return decisions, nil
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
		Recall: func(group []rate.Request) ([]rate.Decision, bool) {
			known := c.recall != nil && c.recall(group)
			return make([]rate.Decision, len(group)), known
		},
	})
}

func text(groups [][]rate.Request) string {
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
		group = append(group, rate.Request{Limiter: "test", Key: key, Limit: rate.PerHour(1000), Tokens: 2, Unit: 2})
	}
	return group
}

// heard is what a caller was told.
type heard struct {
	mu        sync.Mutex
	decisions []rate.Decision
	err       error
}

func (h *heard) told() ([]rate.Decision, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.decisions, h.err
}

var errNoAnswer = errors.New("no answer yet")

// ask in a goroutine of its own, behind all who have asked before.
func ask(ctx context.Context, l *group.Lane, group []rate.Request) *heard {
	h := &heard{err: errNoAnswer}
	go func() {
		decisions, err := l.Decide(ctx, group)
		h.mu.Lock()
		defer h.mu.Unlock()
		h.decisions, h.err = decisions, err
	}()
	synctest.Wait()
	return h
}

func (h *heard) granted(t *testing.T) {
	t.Helper()
	if decisions, err := h.told(); err != nil || len(decisions) == 0 || decisions[0].Granted != 2 {
		t.Errorf("%+v, %v: want a grant", decisions, err)
	}
}

// wants an error, such as errNoAnswer.
func (h *heard) wants(t *testing.T, want error) {
	t.Helper()
	if decisions, err := h.told(); !errors.Is(err, want) {
		t.Errorf("%+v, %v: want %v", decisions, err, want)
	}
}

// later waits for so long by the test's clock, and until what happens then has happened.
func later(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (c *calls) wants(t *testing.T, asked ...string) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Equal(c.asked, asked) {
		t.Errorf("asked %q, want %q", c.asked, asked)
	}
}

// slow is a send that takes a second.
func slow(context.Context, [][]rate.Request) error {
	time.Sleep(time.Second)
	return nil
}
