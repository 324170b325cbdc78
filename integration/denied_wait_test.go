package integration

import (
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// A denial waits for nobody: not even for who is taking what there is of the bucket. It may
// deny by the row as last committed, because a take can only leave less.
func TestADenialDoesNotWaitForWhoUpdatesTheRow(t *testing.T) {
	t.Parallel()
	pool, s := newMigrated(t), strategies.TokenBucket{}
	limit := pglimit.Every(time.Hour).WithBurst(5)
	ask := func(key string, tokens int64) pglimit.Request {
		return pglimit.Request{Limiter: "test", Key: key, Limit: limit, Tokens: tokens, Unit: tokens}
	}
	for _, key := range []string{"a", "b"} {
		if _, err := s.Take(t.Context(), on(pool), []pglimit.Request{ask(key, 1)}); err != nil {
			t.Fatal(err)
		}
	}
	holder := begin(t, pool)
	if _, err := s.Take(t.Context(), on(holder), []pglimit.Request{ask("a", 1)}); err != nil {
		t.Fatal(err)
	}
	for name, requests := range map[string][]pglimit.Request{
		"alone":             {ask("a", 5)},
		"with others":       {ask("a", 5), ask("b", 5), ask("c", 1)},
		"as one of several": {ask("a", 5), ask("a", 5)},
	} {
		ctx := soon(t, time.Minute)
		decisions, err := taken(pool, func() ([]pglimit.Decision, error) { return s.Take(ctx, on(pool), requests) })
		if err != nil || decisions[0].Allowed {
			t.Errorf("%s: %+v, %v", name, decisions, err)
		}
	}
	commit(t, holder)
}

// Two calls saw the same tokens and wait for the row, of a window so short that more is accepted behind the lock
// than was planned: less is not, and one of them gets nothing.
func TestTwoPlansForTheSameTokensAreNotBothKept(t *testing.T) {
	t.Parallel()
	pool, s := newMigrated(t), strategies.SlidingWindow{}
	execute(t, pool, stoppedClock)
	limit := pglimit.PerSecond(100_000).WithBurst(100)
	takeAll(t, pool, s, ask("k", limit, 1, 1))
	holder := begin(t, pool)
	execute(t, holder, "select from pglimit.sliding_window for update")
	granted := make(chan int64, 2)
	for range cap(granted) {
		go func() {
			decisions, err := s.Take(t.Context(), on(pool), []pglimit.Request{ask("k", limit, 60, 60)})
			if err != nil {
				t.Error(err)
				decisions = make([]pglimit.Decision, 1)
			}
			granted <- decisions[0].Granted
		}()
	}
	waiting(t, pool, cap(granted))
	commit(t, holder)
	if first, second := <-granted, <-granted; first+second != 60 {
		t.Errorf("%d and %d granted of the 99 that there are, want 60 together", first, second)
	}
}
