package pglimit

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit/internal/limits"
	"github.com/pglimit/ratelimit/strategies"
)

// denying has no tokens.
type denying struct {
	strategies.TokenBucket
	asked map[string]int // by the key
}

func (d denying) Take(_ context.Context, _ Session, requests []Request) ([]Decision, error) {
	d.asked[requests[0].Key]++
	return slices.Repeat([]Decision{{RetryAfter: time.Hour, ResetAfter: time.Hour}}, len(requests)), nil
}

// What a Limiter remembers is forgotten if rules change that it has asked for, and stays if others do. Nobody who reads the
// rules waits for the change.
func TestAChangeTouchesThoseWhomItIsFor(t *testing.T) {
	t.Parallel()
	rules := []LimitRule{{Limiter: "a", Limit: PerHour(1)}, {Limiter: "b", Limit: PerHour(1)}}
	table := FixedLimits(rules...)
	strategy := denying{asked: make(map[string]int)}
	asks := make(map[string]func())
	for key, bucket := range map[string][2]string{"k of a": {"a", ""}, "k of b": {"b", ""}, "k of a by c": {"c", "a"}, "k of c": {"c", ""}, "k of d": {"d", ""}} {
		limiter, err := newLimiter(nil, struct{ Session }{}, strategy, Config{Name: bucket[0], Limit: PerHour(2), Limits: table, Memory: Memory{TTL: time.Hour}, Breaker: Breaker{Off: true}, Combine: Combine{Off: true}})
		if err != nil {
			t.Fatal(err)
		}
		asks[key] = func() {
			if d, err := limiter.Do(t.Context(), Request{Limiter: bucket[1], Key: key, Tokens: 1}); err != nil || d.Allowed {
				t.Errorf("%s: %+v, %v", key, d, err)
			}
		}
	}
	change := func(name string, forgotten ...string) {
		t.Helper()
		table.swap(limits.New(table.set.Load(), rules))
		clear(strategy.asked)
		table.mu.Lock() // as if another change were under way
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = table.Await(context.Background())
			for _, ask := range asks {
				ask()
				ask()
			}
		}()
		select {
		case <-done:
		case <-time.After(time.Minute):
			t.Fatal("a reader waits for a change")
		}
		table.mu.Unlock()
		for key := range asks {
			if _, known := strategy.asked[key]; known != slices.Contains(forgotten, key) {
				t.Errorf("%s: %s was asked for: %t", name, key, known)
			}
		}
	}
	change("nothing yet", "k of a", "k of b", "k of a by c", "k of c", "k of d")
	change("nothing has changed", "k of a by c")
	rules[0].Note = "another"
	change("a", "k of a", "k of a by c")
	rules = append(rules, LimitRule{Limiter: "b", Key: "other", Limit: PerHour(1)})
	change("one more of b", "k of b", "k of a by c")
	rules = append(rules, LimitRule{Limiter: "d", Action: Observe, Limit: PerHour(1)})
	change("the first of d", "k of a by c", "k of d")
	rules = rules[:2]
	change("one less of b and d", "k of a by c", "k of b", "k of d")
}

// A process that was stopped for so long that the others have gone on without it does not go on with its old count.
func TestAnOldCountDoesNotHold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLimits(nil, LimitsConfig{CountInstances: true})
		i := &instance{limits: l}
		i.count.Store(4)
		for _, test := range []struct {
			after   time.Duration
			counted bool
		}{{0, true}, {stillLive, true}, {1, false}, {time.Hour, false}} {
			time.Sleep(test.after)
			if live, counted := i.live(); counted != test.counted || counted && live != 4 {
				t.Errorf("%v later: %d, %t", test.after, live, counted)
			}
		}
		l.tried.Store(int64(time.Since(l.start)))
		if live, counted := i.live(); !counted || live != 4 {
			t.Errorf("it tries again: %d, %t", live, counted)
		}
	})
}
