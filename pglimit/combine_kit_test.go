package pglimit_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
)

// server is a strategy whose calls take as long as the test wants: each waits until it
// is let go.
type server struct {
	fake
	goOn chan struct{}
}

func newServer(take func(context.Context, []pglimit.Request) ([]pglimit.Decision, error)) *server {
	s := &server{goOn: make(chan struct{})}
	s.take = func(ctx context.Context, requests []pglimit.Request) ([]pglimit.Decision, error) {
		select {
		case <-s.goOn:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		return take(ctx, requests)
	}
	return s
}

// travel takes that long, or until the context ends.
func travel(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// finish lets the call under way go, and waits until its answers are heard.
func (s *server) finish() {
	s.goOn <- struct{}{}
	synctest.Wait()
}

// asked is what the call number i was asked, such as "a:1 b:6/2".
func (f *fake) asked(i int) string {
	var texts []string
	for _, r := range f.taken[i] {
		text := fmt.Sprintf("%s:%d", r.Key, r.Tokens)
		if r.Unit != r.Tokens {
			text += fmt.Sprintf("/%d", r.Unit)
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, " ")
}

// heard is what a caller was told.
type heard struct {
	pglimit.Decision
	err error
}

// callers ask one after another, each in a goroutine of its own.
type callers struct {
	t       *testing.T
	limiter *pglimit.Limiter
}

func (c callers) ask(ctx context.Context, key string, tokens int64) *heard {
	h := &heard{err: errors.New("no answer yet")}
	go func() {
		if tokens == 0 {
			h.Decision, h.err = c.limiter.Peek(ctx, key)
		} else {
			h.Decision, h.err = c.limiter.AllowN(ctx, key, tokens)
		}
	}()
	synctest.Wait()
	return h
}

// combining has one lane, so that every request meets the others.
func combining(t *testing.T, strategy pglimit.Strategy, change func(*pglimit.Config)) callers {
	return callers{t, newLimiter(t, strategy, func(c *pglimit.Config) {
		c.Combine.Off, c.Combine.Lanes = false, 1
		if change != nil {
			change(c)
		}
	})}
}

// buckets is a take that grants what there is of each key, and refills nothing.
func buckets(tokens map[string]int64) func(context.Context, []pglimit.Request) ([]pglimit.Decision, error) {
	return func(_ context.Context, requests []pglimit.Request) ([]pglimit.Decision, error) {
		decisions := make([]pglimit.Decision, len(requests))
		for i, r := range requests {
			granted := min(r.Tokens, tokens[r.Key]) / r.Unit * r.Unit
			tokens[r.Key] -= granted
			used := r.Limit.Burst - tokens[r.Key]
			decisions[i] = pglimit.Decision{
				Allowed: granted > 0, Granted: granted, Remaining: tokens[r.Key],
				ResetAfter: time.Duration(used) * 100 * time.Millisecond, At: time.Unix(1000, 0),
			}
			if tokens[r.Key] < r.Unit {
				decisions[i].RetryAfter = time.Duration(r.Unit-tokens[r.Key]) * 100 * time.Millisecond
			}
		}
		return decisions, nil
	}
}

// takeDurably is callers.ask for a token that has to be durable.
func (c callers) takeDurably(key string) *heard {
	h := &heard{err: errors.New("no answer yet")}
	go func() {
		var decisions []pglimit.Decision
		decisions, h.err = c.limiter.DoEach(c.t.Context(), pglimit.Request{Key: key, Tokens: 1, Durability: pglimit.Durable})
		h.Decision = decisions[0]
	}()
	synctest.Wait()
	return h
}
