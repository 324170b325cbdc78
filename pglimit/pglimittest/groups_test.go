package pglimittest_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit/pglimittest"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

func takeGroups(t *testing.T, memory *pglimittest.Strategy, groups ...[]rate.Request) [][]rate.Decision {
	t.Helper()
	all := take(t, memory, numbered(groups...)...)
	decisions := make([][]rate.Decision, len(groups))
	for i := range groups {
		decisions[i], all = all[:len(groups[i])], all[len(groups[i]):]
	}
	return decisions
}

// numbered are the requests of groups.
func numbered(groups ...[]rate.Request) (requests []rate.Request) {
	for i, group := range groups {
		for _, r := range group {
			r.Group = i + 1
			requests = append(requests, r)
		}
	}
	return requests
}

// A group takes from all of its buckets or from none, and says which had the tokens.
func TestAGroupIsAllOrNothing(t *testing.T) {
	t.Parallel()
	memory := pglimittest.Memory()
	user, all := rate.PerHour(2), rate.PerHour(3)
	group := func(key string) []rate.Request { return []rate.Request{bucket(key, user, 1), bucket("all", all, 1)} }
	of := takeGroups(t, memory, group("a"), group("a"), group("a"), group("b"), group("b"))
	for i, want := range []struct {
		granted          int64
		key, all         bool
		keyLeft, allLeft int64
	}{{1, true, true, 1, 2}, {1, true, true, 0, 1}, {0, false, true, 0, 1}, {1, true, true, 1, 0}, {0, true, false, 1, 0}} {
		key, shared := of[i][0], of[i][1]
		if key.Granted != want.granted || shared.Granted != want.granted || key.Allowed != want.key || shared.Allowed != want.all ||
			key.Remaining != want.keyLeft || shared.Remaining != want.allLeft {
			t.Errorf("group %d: %+v, want %+v", i, of[i], want)
		}
		if (key.RetryAfter > 0) != (key.Remaining == 0) || (shared.RetryAfter > 0) != (shared.Remaining == 0) {
			t.Errorf("group %d: %+v", i, of[i])
		}
	}
	if none := takeGroups(t, memory); len(none) != 0 {
		t.Errorf("%d decisions of no groups", len(none))
	}
}

// However many callers there are, what a group took of one bucket it took of the other.
func TestGroupsUnderLoad(t *testing.T) {
	t.Parallel()
	memory, limit := pglimittest.Memory(), rate.PerHour(1000)
	var granted atomic.Int64
	var callers sync.WaitGroup
	for i := range 8 {
		callers.Go(func() {
			key := string(rune('a' + i%2))
			for range 300 {
				of, err := memory.Take(t.Context(), nil, numbered([]rate.Request{bucket(key, limit, 1), bucket("all", limit, 1)}))
				if err != nil {
					t.Error(err)
					return
				}
				granted.Add(of[0].Granted)
			}
		})
	}
	callers.Wait()
	left := take(t, memory, bucket("a", limit, 0), bucket("b", limit, 0), bucket("all", limit, 0))
	if taken := 2000 - left[0].Remaining - left[1].Remaining; granted.Load() != 1000 || taken != 1000 || left[2].Remaining != 0 {
		t.Errorf("%d granted, %d taken of the keys, %d left of all", granted.Load(), taken, left[2].Remaining)
	}
}

func TestBadGroupsAreErrorsAndTakeNothing(t *testing.T) {
	t.Parallel()
	memory, limit := pglimittest.Memory(), rate.PerHour(2)
	for name, test := range map[string]struct {
		field string
		spoil func(*rate.Request)
	}{
		"a bucket twice":  {"Key", func(r *rate.Request) { r.Key = "good" }},
		"another limit":   {"Limit", func(r *rate.Request) { r.Key, r.Limit = "before", rate.PerHour(3) }},
		"a peek":          {"Group", func(r *rate.Request) { r.Tokens, r.Unit = 0, 0 }},
		"in units":        {"Group", func(r *rate.Request) { r.Tokens, r.Unit = 2, 1 }},
		"ahead":           {"Group", func(r *rate.Request) { r.Ahead = time.Second }},
		"an ID":           {"Group", func(r *rate.Request) { r.ID = "1" }},
		"no key":          {"Key", func(r *rate.Request) { r.Key = "" }},
		"more than burst": {"Tokens", func(r *rate.Request) { r.Tokens, r.Unit = 3, 3 }},
	} {
		bad := bucket("bad", limit, 1)
		test.spoil(&bad)
		_, err := memory.Take(t.Context(), nil, numbered([]rate.Request{bucket("before", limit, 1)}, []rate.Request{bucket("good", limit, 1), bad}))
		if of := (*rate.RequestError)(nil); !errors.As(err, &of) || of.Field != test.field {
			t.Errorf("%s: the error is %v", name, err)
		}
	}
	for i, d := range take(t, memory, bucket("before", limit, 2), bucket("good", limit, 2)) {
		if !d.Allowed {
			t.Errorf("bucket %d: one of these calls took a token", i)
		}
	}
}
