package combine_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/internal/bucket"
	"github.com/pglimit/ratelimit/pglimit/internal/combine"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Close that has no time gives up every lane's call and all who wait, says that somebody has
// no answer, and is back when no goroutine of a lane's is left.
//
// Not parallel: it looks at all goroutines.
func TestCloseGivesUpEveryLane(t *testing.T) {
	for _, keys := range []int{0, 1, 30} {
		for range 20 {
			synctest.Test(t, func(t *testing.T) {
				s := &calls{send: func(ctx context.Context, _ []rate.Request) ([]rate.Decision, error) {
					<-ctx.Done()
					time.Sleep(time.Millisecond) // it takes its time to end
					return nil, ctx.Err()
				}}
				c := s.combiner(8)
				var heards []*heard
				for key := range keys {
					for range 2 {
						heards = append(heards, ask(t.Context(), c, fmt.Sprint("k", key), 1))
					}
				}
				ended, cancel := context.WithCancel(t.Context())
				cancel()
				err := c.Close(ended)
				synctest.Wait() // for those who have said that they are done, and nothing else: no time passes
				if stacks := lanes(); len(stacks) != 0 {
					t.Errorf("%d keys: left is\n%s", keys, stacks[0])
				}
				if want := keys > 0; errors.Is(err, context.Canceled) != want {
					t.Errorf("%d keys: %v", keys, err)
				}
				synctest.Wait()
				for i, h := range heards {
					if !errors.Is(h.err, rate.ErrClosed) {
						t.Errorf("number %d of %d keys: %+v", i, keys, h)
					}
				}
				if _, err := decide(t.Context(), c, request("a", 1)); !errors.Is(err, rate.ErrClosed) {
					t.Error(err)
				}
				_, errs := decideAll(t.Context(), c, []rate.Request{request("a", 1), request("b", 1), request("a", 1)})
				for _, err := range errs {
					if !errors.Is(err, rate.ErrClosed) {
						t.Error(err)
					}
				}
			})
		}
	}
}

// lanes are the goroutines that serve one.
func lanes() (found []string) {
	buffer := make([]byte, 1<<20)
	for stack := range strings.SplitSeq(string(buffer[:runtime.Stack(buffer, true)]), "\n\n") {
		if strings.Contains(stack, "internal/combine.(*lane)") && !strings.Contains(stack, ".Decide") {
			found = append(found, stack)
		}
	}
	return found
}

// What is asked together is sent in its order, each with a decision of its own.
func TestWhatIsAskedTogether(t *testing.T) {
	t.Parallel()
	for _, lanes := range []int{1, 8} {
		synctest.Test(t, func(t *testing.T) {
			asked := make(chan string, 100)
			c := combine.New(lanes, combine.Functions{
				Rule: bucket.Rule{},
				Send: func(_ context.Context, requests []rate.Request) ([]rate.Decision, error) {
					asked <- text(requests)
					decisions := grant(requests)
					for i, r := range requests {
						if r.Key == "poor" {
							decisions[i] = rate.Decision{Remaining: 7}
						}
					}
					return decisions, nil
				},
				Learned: func() uint64 { return 0 },
			})
			var requests []rate.Request
			for i, key := range []string{"a", "poor", "a", "b", "a", "a", "c"} {
				requests = append(requests, request(key, int64(1+i)))
			}
			for range 3 {
				decisions, errs := decideAll(t.Context(), c, requests)
				for i, r := range requests {
					want := rate.Decision{Allowed: true, Granted: r.Tokens}
					if r.Key == "poor" {
						want = rate.Decision{Remaining: 7}
					}
					if errs[i] != nil || decisions[i].Granted != want.Granted || decisions[i].Allowed != want.Allowed {
						t.Errorf("%d lanes, number %d: %+v, %v", lanes, i, decisions[i], errs[i])
					}
				}
			}
			synctest.Wait()
			var tokens []string // of a, in order
			for range len(asked) {
				for field := range strings.FieldsSeq(<-asked) {
					if strings.HasPrefix(field, "a:") {
						tokens = append(tokens, field)
					}
				}
			}
			want := slices.Repeat([]string{"a:1", "a:3", "a:5", "a:6"}, 3)
			if !slices.Equal(tokens, want) {
				t.Errorf("%d lanes: asked %q", lanes, tokens)
			}
			if err := c.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}
