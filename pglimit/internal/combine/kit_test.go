package combine_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
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

	mu      sync.Mutex
	asked   []string // such as "a:1 b:6/2 c:1@5/1s other/d:1" of each call
	refunds []rate.Refund
}

func (c *calls) combiner(lanes int) *combine.Combiner {
	if c.rule == nil {
		c.rule = bucket.Rule{}
	}
	return combine.New(lanes, combine.Functions{
		Rule: c.rule,
		Send: func(ctx context.Context, requests []rate.Request) ([]rate.Decision, error) {
			c.mu.Lock()
			c.asked = append(c.asked, text(requests))
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
