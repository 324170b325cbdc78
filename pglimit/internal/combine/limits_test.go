package combine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/internal/bucket"
	"github.com/pglimit/ratelimit/pglimit/internal/combine"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// under another limit than the others.
func under(limit rate.Limit, key string, tokens int64) rate.Request {
	r := request(key, tokens)
	r.Limit = limit
	return r
}

var five, nine = rate.PerSecond(5), rate.PerSecond(9)

// Requests for different buckets go out together, whatever their limits. From the first on that
// asks for a bucket under another limit, those for that bucket wait for the next call, in order.
func TestACallHasOneLimitForEachBucket(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := make(gate)
		s := &calls{send: g.send}
		c := s.combiner(1)
		other := request("a", 1)
		other.Limiter = "other"
		heards := []*heard{ask(t.Context(), c, "z", 1)}
		for _, r := range []rate.Request{
			request("a", 1), under(five, "a", 2), request("a", 1), under(nine, "b", 1), other, under(nine, "b", 1), under(nine, "a", 1), under(nine, "a", 1), under(five, "other", 1),
		} {
			heards = append(heards, askFor(t.Context(), c, r))
		}
		for range 5 {
			g.open()
		}
		want := []string{"z:1", "a:1 b:2/1@9/1s other/a:1 other:1@5/1s", "a:2@5/1s", "a:1", "a:2/1@9/1s"}
		if !slices.Equal(s.asked, want) {
			t.Errorf("asked %q\nwant %q", s.asked, want)
		}
		for i, h := range heards {
			if h.err != nil || !h.Allowed {
				t.Errorf("number %d: %+v", i, h)
			}
		}
	})
}

// Also where there are so many buckets that they are found by a map, and in the next batch too.
func TestManyBucketsUnderTwoLimits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := make(gate)
		s := &calls{send: g.send}
		c := s.combiner(1)
		var requests []rate.Request
		for key := range 40 {
			name := fmt.Sprint("k", key)
			requests = append(requests, request(name, 1), under(five, name, 1), request(name, 1))
		}
		for range 2 {
			var errs []error
			go func() { _, errs = decideAll(t.Context(), c, requests) }()
			synctest.Wait()
			for range 3 {
				g.open()
			}
			if len(errs) != len(requests) || errors.Join(errs...) != nil {
				t.Errorf("after three calls: %v", errs)
			}
		}
		for i, asked := range s.asked {
			ofFive := map[bool]int{true: 40}[i%3 == 1]
			if strings.Count(asked, "k") != 40 || strings.Count(asked, "@5/1s") != ofFive {
				t.Errorf("call %d: %q", i, asked)
			}
		}
	})
}

// A caller that is left for the next batch can leave, before and after the call is sent, and is
// not charged.
func TestWhoWaitsForTheNextBatchLeaves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := make(gate)
		s := &calls{send: g.send}
		c := s.combiner(1)
		ask(t.Context(), c, "z", 1)
		ctx, leave := context.WithCancel(t.Context())
		first := ask(t.Context(), c, "a", 1)
		gone := askFor(ctx, c, under(five, "a", 1))
		stays := askFor(t.Context(), c, under(five, "a", 2))
		g.open() // the call with the first is under way
		leave()
		synctest.Wait()
		if !errors.Is(gone.err, context.Canceled) {
			t.Errorf("%+v", gone)
		}
		g.open()
		g.open()
		if want := []string{"z:1", "a:1", "a:2@5/1s"}; !slices.Equal(s.asked, want) || first.err != nil || stays.err != nil {
			t.Errorf("asked %q, %+v, %+v", s.asked, first, stays)
		}
		if n := c.Stats.GivenBack.Load() + c.Stats.Lost.Load() + c.Stats.PassedOn.Load(); n != 0 {
			t.Errorf("%d tokens", n)
		}
	})
}

// A call whose own callers have all left is given up, although others wait for the next one.
func TestWhoIsLeftForTheNextBatchDoesNotKeepTheCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := make(gate)
		s := &calls{}
		s.send = func(ctx context.Context, requests []rate.Request) ([]rate.Decision, error) {
			if requests[0].Key == "a" && requests[0].Limit == limit {
				<-ctx.Done() // it hangs
				return nil, ctx.Err()
			}
			return g.send(ctx, requests)
		}
		c := s.combiner(1)
		ask(t.Context(), c, "z", 1)
		ctx, leave := context.WithCancel(t.Context())
		ask(ctx, c, "a", 1)
		next := askFor(t.Context(), c, under(five, "a", 1))
		g.open()
		leave()
		later(time.Minute)
		g.open()
		if next.err != nil || !next.Allowed || s.asked[2] != "a:1@5/1s" {
			t.Errorf("%+v, asked %q", next, s.asked)
		}
	})
}

// Tokens of a caller who has left are not passed on to one who asks under another limit, nor to
// those behind it.
func TestTokensAreNotPassedOnToAnotherLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := make(gate)
		s := &calls{send: g.send}
		c := s.combiner(1)
		ask(t.Context(), c, "z", 1)
		ctx, leave := context.WithCancel(t.Context())
		ask(ctx, c, "a", 1)
		g.open()
		other, behind := askFor(t.Context(), c, under(five, "a", 1)), ask(t.Context(), c, "a", 1)
		leave()
		synctest.Wait()
		g.open()
		if other.err == nil || behind.err == nil || c.Stats.PassedOn.Load() != 0 || c.Stats.GivenBack.Load() != 1 || s.refunds[0].Limit != limit {
			t.Errorf("%+v, %+v, given back %+v", other, behind, s.refunds)
		}
		g.open()
		g.open()
		if other.err != nil || behind.err != nil || s.asked[2] != "a:1@5/1s" {
			t.Errorf("%+v, %+v, asked %q", other, behind, s.asked)
		}
	})
}

// While the bucket's row is held, its callers wait in a lane of their own, in order, under
// whatever limit.
func TestAHeldBucketUnderTwoLimits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := make(gate)
		s := &calls{}
		s.send = func(ctx context.Context, requests []rate.Request) ([]rate.Decision, error) {
			if requests[0].Key == "a" && requests[0].Impatient && len(s.asked) < 3 {
				return nil, fmt.Errorf("%w: %w", rate.ErrNothingTaken, rate.ErrLocked)
			}
			return g.send(ctx, requests)
		}
		c := s.combiner(1)
		ask(t.Context(), c, "z", 1)
		var heards []*heard
		for _, r := range []rate.Request{request("a", 1), under(five, "a", 2), request("a", 3)} {
			heards = append(heards, askFor(t.Context(), c, r))
		}
		g.open() // the call with a fails, and is repeated patiently
		heards = append(heards, askFor(t.Context(), c, under(five, "a", 4)))
		for i := range 4 {
			g.open()
			if heards[i].err != nil || i < 3 && heards[i+1].err == nil {
				t.Errorf("after call %d: %+v, next %+v", i, heards[i], heards[min(i+1, 3)])
			}
		}
		if want := []string{"z:1", "a:1", "a:1", "a:2@5/1s", "a:3", "a:4@5/1s"}; !slices.Equal(s.asked, want) {
			t.Errorf("asked %q", s.asked)
		}
	})
}

// A call has keys of one shard, in order of arrival, and begins with who waits for longest. Callers of other shards are
// in the next ones.
func TestACallHasKeysOfOneShard(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := make(gate)
		var asked []string
		c := combine.New(2, combine.Functions{
			Rule: bucket.Rule{}, Learned: func() uint64 { return 0 },
			Send: func(ctx context.Context, requests []rate.Request) ([]rate.Decision, error) {
				asked = append(asked, text(requests))
				return g.send(ctx, requests)
			},
			Shard: func(key string) int { return int(key[0]) },
			Lane:  func(string, int) int { return 1 },
		})
		heards := []*heard{ask(t.Context(), c, "z1", 1)}
		for _, key := range []string{"b1", "a1", "b2", "a2", "c1", "b1", "z1"} {
			heards = append(heards, ask(t.Context(), c, key, 1))
		}
		for range 5 {
			g.open()
		}
		if want := []string{"z1:1", "b1:2/1 b2:1", "a1:1 a2:1", "c1:1", "z1:1"}; !slices.Equal(asked, want) {
			t.Errorf("asked %q, want %q", asked, want)
		}
		for i, h := range heards {
			if h.err != nil || !h.Allowed {
				t.Errorf("number %d: %+v", i, h)
			}
		}
	})
}
