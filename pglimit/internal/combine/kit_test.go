package combine_test

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

	"github.com/pglimit/ratelimit/internal/bucket"
	"github.com/pglimit/ratelimit/pglimit/internal/claims"
	"github.com/pglimit/ratelimit/pglimit/internal/combine"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// calls are what the Combiner calls: they do as the test says, and remember what they were
// asked. As they are, they grant everything and know of no denial.
type calls struct {
	rule     rate.Rule // nil: that of a token bucket
	send     func(ctx context.Context, requests []rate.Request) ([]rate.Decision, error)
	giveBack func(ctx context.Context, refunds []rate.Refund) error
	learned  func() uint64
	recall   func(request *rate.Request) (rate.Decision, bool)

	text func(requests []rate.Request) string // nil: as below

	mu      sync.Mutex
	asked   []string // such as "a:1 b:6/2 c:1@5/1s other/d:1" of each call
	refunds []rate.Refund
}

func (c *calls) combiner(lanes int) *combine.Combiner {
	if c.rule == nil {
		c.rule = bucket.Rule{}
	}
	if c.text == nil {
		c.text = text
	}
	return combine.New(lanes, combine.Functions{
		Rule: c.rule,
		Send: func(ctx context.Context, requests []rate.Request) ([]rate.Decision, error) {
			c.mu.Lock()
			c.asked = append(c.asked, c.text(requests))
			c.mu.Unlock()
			if c.send != nil {
				return c.send(ctx, requests)
			}
			return grant(requests), nil
		},
		GiveBack: func(ctx context.Context, refunds []rate.Refund) error {
			c.mu.Lock()
			c.refunds = append(c.refunds, refunds...)
			c.mu.Unlock()
			if c.giveBack != nil {
				return c.giveBack(ctx, refunds)
			}
			return nil
		},
		Learned: func() uint64 {
			if c.learned != nil {
				return c.learned()
			}
			return 0
		},
		Recall: func(requests []rate.Request, decisions []rate.Decision) (known bool) {
			if c.recall != nil {
				decisions[0], known = c.recall(&requests[0])
			}
			return known
		},
	})
}

func text(requests []rate.Request) string {
	var texts []string
	for _, r := range requests {
		text := fmt.Sprintf("%s:%d", r.Key, r.Tokens)
		if r.Unit != r.Tokens {
			text += fmt.Sprintf("/%d", r.Unit)
		}
		if r.Limit != limit {
			text += fmt.Sprintf("@%v", r.Limit)
		}
		if r.Limiter != "test" {
			text = r.Limiter + "/" + text
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, " ")
}

// grant whatever is asked.
func grant(requests []rate.Request) []rate.Decision {
	decisions := make([]rate.Decision, len(requests))
	for i, r := range requests {
		decisions[i] = rate.Decision{Allowed: true, Granted: r.Tokens}
	}
	return decisions
}

var limit = rate.PerHour(1000)

func request(key string, tokens int64) rate.Request {
	return rate.Request{Limiter: "test", Key: key, Limit: limit, Tokens: tokens, Unit: max(tokens, 1)}
}

// heard is what a caller was told.
type heard struct {
	rate.Decision
	err error
}

var errNoAnswer = errors.New("no answer yet")

// decide asks about a request.
func decide(ctx context.Context, c *combine.Combiner, r rate.Request) (rate.Decision, error) {
	decisions, errs := decideAll(ctx, c, []rate.Request{r})
	return decisions[0], errs[0]
}

// decideAll asks about requests, each by itself.
func decideAll(ctx context.Context, c *combine.Combiner, requests []rate.Request) ([]rate.Decision, []error) {
	var units []*claims.Claim
	for i := range requests {
		units = append(units, &claims.Claim{Requests: requests[i : i+1], Decisions: make([]rate.Decision, 1)})
	}
	c.Decide(ctx, units)
	decisions, errs := make([]rate.Decision, len(units)), make([]error, len(units))
	for i, u := range units {
		decisions[i], errs[i] = u.Decisions[0], u.Err
	}
	return decisions, errs
}

// ask in a goroutine of its own, behind all who have asked before.
func ask(ctx context.Context, c *combine.Combiner, key string, tokens int64) *heard {
	return askFor(ctx, c, request(key, tokens))
}

// askFor is ask for any request.
func askFor(ctx context.Context, c *combine.Combiner, r rate.Request) *heard {
	h := &heard{err: errNoAnswer}
	go func() { h.Decision, h.err = decide(ctx, c, r) }()
	synctest.Wait()
	return h
}

// later waits for so long by the test's clock, and until what happens then has happened.
func later(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// groupCalls are calls for groups.
type groupCalls struct {
	calls
	send     func(ctx context.Context, groups [][]rate.Request) error // nil: all are granted
	giveBack func(ctx context.Context) error
}

// lane is a Combiner. Asked is such as "a+b c" of each call; with a "!" if it is patient.
func (c *groupCalls) lane() *combine.Combiner {
	c.text = func(requests []rate.Request) string { return groupText(groupsOf(requests)) }
	c.calls.send = func(ctx context.Context, requests []rate.Request) ([]rate.Decision, error) {
		if c.send != nil {
			if err := c.send(ctx, groupsOf(requests)); err != nil {
				return nil, err
			}
		}
		return grant(requests), nil
	}
	if c.giveBack != nil {
		c.calls.giveBack = func(ctx context.Context, _ []rate.Refund) error { return c.giveBack(ctx) }
	}
	return c.combiner(1)
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
