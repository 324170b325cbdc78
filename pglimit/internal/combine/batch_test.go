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

	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
)

// gate lets one call after another go, when the test says so.
type gate chan struct{}

func (g gate) send(_ context.Context, requests []rate.Request) ([]rate.Decision, error) {
	<-g
	return grant(requests), nil
}

// open lets the call under way go, and waits until its answers are heard.
func (g gate) open() {
	g <- struct{}{}
	synctest.Wait()
}

// Where a key has several requests already, it is the last of them that the next may join,
// however many others are in the batch.
func TestARequestJoinsTheLastOfItsKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := make(gate)
		s := &calls{send: g.send}
		c := s.combiner(1)
		ask(t.Context(), c, "z", 1)
		ask(t.Context(), c, "a", 1)
		ask(t.Context(), c, "a", 3)
		for key := range 10 {
			ask(t.Context(), c, fmt.Sprint("k", key), 1)
		}
		ask(t.Context(), c, "a", 3)
		ask(t.Context(), c, "a", 1)
		g.open()
		g.open()
		if got := s.asked[1]; !strings.HasPrefix(got, "a:1 a:6/3 k0:1 ") || !strings.HasSuffix(got, " a:1") || strings.Count(got, "a:") != 3 {
			t.Errorf("asked %q", got)
		}
	})
}

// slow is a context that takes its time to be asked for its end.
type slow struct{ context.Context }

func (s slow) Done() <-chan struct{} {
	time.Sleep(time.Millisecond)
	return s.Context.Done()
}

// Who comes with a context that has ended is not sent, though it takes a while to notice.
func TestWhoHasLeftAlreadyIsNotSent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		ended := slow{ctx}
		s := &calls{}
		c := s.combiner(1)
		_, err := decide(ended, c, request("a", 1))
		_, errs := decideAll(ended, c, []rate.Request{request("a", 1), request("b", 1)})
		later(time.Second)
		for _, err := range append(errs, err) {
			if err != context.Canceled { //nolint:errorlint // as it is, not wrapped
				t.Error(err)
			}
		}
		if len(s.asked) != 0 {
			t.Errorf("asked %q", s.asked)
		}
	})
}

// Of a call that failed it is not known whether it took: what it was to take for callers who
// have left may be lost. If nothing was taken, nothing is.
func TestWhatIsLostWithACallThatFailed(t *testing.T) {
	t.Parallel()
	errDown := errors.New("the server is down")
	for _, test := range []struct {
		err  error
		lost int64
	}{{errDown, 3}, {fmt.Errorf("no: %w", rate.ErrNothingTaken), 0}} {
		synctest.Test(t, func(t *testing.T) {
			goOn := make(chan struct{})
			s := &calls{send: func(context.Context, []rate.Request) ([]rate.Decision, error) {
				<-goOn
				return nil, test.err
			}}
			c := s.combiner(1)
			first := ask(t.Context(), c, "z", 5)
			ctx, leave := context.WithCancel(t.Context())
			ask(ctx, c, "a", 3)
			stays := ask(t.Context(), c, "a", 2)
			goOn <- struct{}{}
			synctest.Wait()
			leave()
			synctest.Wait()
			goOn <- struct{}{}
			synctest.Wait()
			if !errors.Is(first.err, test.err) || !errors.Is(stays.err, test.err) || c.Stats.Lost.Load() != test.lost || len(s.refunds) != 0 {
				t.Errorf("%+v, %+v, lost %d, given back %+v", first, stays, c.Stats.Lost.Load(), s.refunds)
			}
		})
	}
}

// An outage that shows while one of many pieces is divided once more ends it all.
func TestAnOutageEndsTheSearchForTheKeyToBlame(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		errDown := errors.New("the server is down")
		g := make(gate)
		s := &calls{}
		s.send = func(ctx context.Context, requests []rate.Request) ([]rate.Decision, error) {
			switch {
			case requests[0].Key == "z":
				return g.send(ctx, requests)
			case len(requests) > 1:
				return nil, rate.ErrNothingTaken
			}
			return nil, errDown
		}
		c := s.combiner(1)
		ask(t.Context(), c, "z", 1)
		var heards []*heard
		for key := range 100 { // so that each piece has several
			heards = append(heards, ask(t.Context(), c, fmt.Sprint("k", key), 1))
		}
		g.open()
		for i, h := range heards {
			if !errors.Is(h.err, errDown) {
				t.Errorf("number %d: %+v", i, h)
			}
		}
		// That of z, the batch, a piece, and a key of it.
		if len(s.asked) != 4 {
			t.Errorf("%d calls: %.200q", len(s.asked), s.asked)
		}
	})
}

// A peek in the queue is not answered by what was granted to others, and nobody of its key
// overtakes it.
func TestAPeekIsNotAnsweredByTokensOfOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := make(gate)
		s := &calls{send: g.send}
		c := s.combiner(1)
		ask(t.Context(), c, "z", 1)
		ctx, leave := context.WithCancel(t.Context())
		ask(ctx, c, "a", 1)
		g.open()
		peek, behind := ask(t.Context(), c, "a", 0), ask(t.Context(), c, "a", 1)
		leave()
		synctest.Wait()
		g.open()
		if peek.err == nil || behind.err == nil || c.Stats.PassedOn.Load() != 0 || c.Stats.GivenBack.Load() != 1 {
			t.Errorf("%+v, %+v, passed on %d, given back %d", peek, behind, c.Stats.PassedOn.Load(), c.Stats.GivenBack.Load())
		}
		g.open()
		if peek.err != nil || behind.err != nil {
			t.Errorf("%+v, %+v", peek, behind)
		}
	})
}

// Of three tokens for one who has left, two go to the next. The third is a refund by itself,
// though no request was for one.
func TestARefundOfPartOfARequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := make(gate)
		at := time.Unix(1000, 0)
		s := &calls{send: func(ctx context.Context, requests []rate.Request) ([]rate.Decision, error) {
			decisions, err := g.send(ctx, requests)
			for i := range decisions {
				decisions[i].At = at
				if i > 0 { // there were three
					decisions[i].Allowed, decisions[i].Granted = false, 0
				}
			}
			return decisions, err
		}}
		c := s.combiner(1)
		ask(t.Context(), c, "z", 1)
		ctx, leave := context.WithCancel(t.Context())
		ask(ctx, c, "a", 3)
		two := ask(t.Context(), c, "a", 2)
		g.open()
		leave()
		synctest.Wait()
		g.open()
		want := rate.Refund{Request: request("a", 1), At: at}
		want.Impatient = true
		if !two.Allowed || two.Granted != 2 || !slices.Equal(s.refunds, []rate.Refund{want}) {
			t.Errorf("%+v, given back %+v", two, s.refunds)
		}
	})
}

// A request behind one that is sent for the same bucket is sent too, whatever the memory knows: what it is told depends
// on what that one takes.
func TestTheMemoryKeepsTheOrderOfABucketsRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, learned := make(gate), uint64(0)
		s := &calls{
			send: g.send, learned: func() uint64 { learned++; return learned },
			recall: func(r *rate.Request) (d rate.Decision, known bool) { return d, r.Tokens == 5 },
		}
		c := s.combiner(1)
		ask(t.Context(), c, "z", 1)
		first := ask(t.Context(), c, "a", 5)
		ask(t.Context(), c, "a", 1)
		behind := ask(t.Context(), c, "a", 5)
		g.open()
		g.open()
		if first.err != nil || first.Allowed || !behind.Allowed || s.asked[1] != "a:1 a:5" {
			t.Errorf("%+v, %+v, asked %q", first, behind, s.asked)
		}
	})
}

func durably(key string, tokens int64) rate.Request {
	r := request(key, tokens)
	r.Durability = rate.Durable
	return r
}

// A relaxed request and a durable one become a durable one, in either order.
func TestWhatIsCombinedIsAsDurableAsEachOfIt(t *testing.T) {
	t.Parallel()
	for _, both := range [][]rate.Request{{request("a", 1), durably("a", 1)}, {durably("a", 1), request("a", 1)}} {
		synctest.Test(t, func(t *testing.T) {
			g, sent := make(gate), []rate.Durability(nil)
			s := &calls{send: func(ctx context.Context, requests []rate.Request) ([]rate.Decision, error) {
				sent = append(sent, requests[0].Durability)
				return g.send(ctx, requests)
			}}
			c := s.combiner(1)
			ask(t.Context(), c, "z", 1)
			one, two := askFor(t.Context(), c, both[0]), askFor(t.Context(), c, both[1])
			g.open()
			g.open()
			if !one.Allowed || !two.Allowed || len(s.asked) != 2 || s.asked[1] != "a:2/1" || sent[0] != rate.Relaxed || sent[1] != rate.Durable {
				t.Errorf("%+v, %+v, asked %q, %v", one, two, s.asked, sent)
			}
		})
	}
}

// Tokens that a relaxed call granted are not durable: a caller who needs that waits for its own call, and nobody
// overtakes it. The other way they are passed on.
func TestWhatIsNotDurableIsNotPassedOnAsDurable(t *testing.T) {
	t.Parallel()
	for durable, gone := range map[bool]rate.Request{false: request("a", 2), true: durably("a", 2)} {
		synctest.Test(t, func(t *testing.T) {
			g := make(gate)
			s := &calls{send: g.send}
			c := s.combiner(1)
			ask(t.Context(), c, "z", 1)
			ctx, leave := context.WithCancel(t.Context())
			askFor(ctx, c, gone)
			g.open()
			next, behind := askFor(t.Context(), c, durably("a", 1)), ask(t.Context(), c, "a", 1)
			leave()
			synctest.Wait()
			g.open()
			passed, back := c.Stats.PassedOn.Load(), c.Stats.GivenBack.Load()
			if next.Allowed != durable || behind.Allowed != durable || (passed == 2) != durable || (back == 2) == durable {
				t.Errorf("durable %t: %+v, %+v, passed on %d, given back %d", durable, next, behind, passed, back)
			}
			if !durable {
				g.open()
			}
			if !next.Allowed || !behind.Allowed {
				t.Errorf("durable %t: %+v, %+v", durable, next, behind)
			}
		})
	}
}

// Two requests of 2^62 tokens are more than a number holds, and do not become one.
func TestTheSumOfABatchDoesNotOverflow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const huge = 1 << 62
		g := make(gate)
		s := &calls{send: g.send}
		c := s.combiner(1)
		ask(t.Context(), c, "z", 1)
		one, two := ask(t.Context(), c, "a", huge), ask(t.Context(), c, "a", huge)
		g.open()
		g.open()
		if want := fmt.Sprintf("a:%d a:%d", int64(huge), int64(huge)); s.asked[1] != want || one.Granted != huge || two.Granted != huge {
			t.Errorf("%+v, %+v, asked %q", one, two, s.asked)
		}
	})
}

// The grant of a caller who has left is not divided among two others where two grants must have a distance, or be paid
// for one by one: they wait for their own.
func TestAGrantIsNotDividedWhereGrantsHaveADistance(t *testing.T) {
	t.Parallel()
	for _, rule := range []rate.Rule{strategies.SlidingLog{MinInterval: time.Second}.Rule(), strategies.WarmUp{}.Rule()} {
		synctest.Test(t, func(t *testing.T) { isNotDivided(t, rule) })
	}
}

func isNotDivided(t *testing.T, rule rate.Rule) {
	t.Helper()
	proceed := make(chan struct{})
	calls := &calls{rule: rule}
	calls.send = func(_ context.Context, requests []rate.Request) ([]rate.Decision, error) {
		<-proceed
		decisions := make([]rate.Decision, len(requests))
		decisions[0] = rate.Decision{Allowed: true, Granted: requests[0].Unit, Limit: limit}
		return decisions, nil
	}
	c := calls.combiner(1)
	defer func() { _ = c.Close(context.WithoutCancel(t.Context())) }()
	ctx, leave := context.WithCancel(t.Context())
	ask := func(ctx context.Context, tokens int64) *heard {
		h := new(heard)
		go func() { h.Decision, h.err = decide(ctx, c, request("a", tokens)) }()
		synctest.Wait()
		return h
	}
	ask(t.Context(), 1)
	ask(ctx, 3) // leaves
	others := []*heard{ask(t.Context(), 1), ask(t.Context(), 1)}
	proceed <- struct{}{}
	synctest.Wait()
	leave()
	synctest.Wait()
	queued := []*heard{ask(t.Context(), 1), ask(t.Context(), 1)}
	proceed <- struct{}{}
	synctest.Wait()
	for _, h := range append(others, queued...) {
		if h.err != nil || h.Allowed {
			t.Errorf("%+v", h)
		}
	}
	if len(calls.refunds) != 1 || calls.refunds[0].Tokens != 3 {
		t.Errorf("given back: %+v", calls.refunds)
	}
	proceed <- struct{}{} // of those that were queued, one is granted
	synctest.Wait()
	if !queued[0].Allowed || queued[1].Allowed {
		t.Errorf("%+v, %+v", queued[0], queued[1])
	}
}

// By a rule whose tokens do not come back evenly, each request stays as it is, and few go out together: each is a round
// trip behind the locks of those before it.
func TestRequestsStayApart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		proceed, sizes := make(chan struct{}), []int(nil)
		calls := &calls{rule: strategies.WarmUp{}.Rule()}
		calls.send = func(_ context.Context, requests []rate.Request) ([]rate.Decision, error) {
			<-proceed
			sizes = append(sizes, len(requests))
			for _, r := range requests {
				if r.Tokens != 1 {
					t.Errorf("%+v", r)
				}
			}
			return make([]rate.Decision, len(requests)), nil
		}
		c := calls.combiner(1)
		defer func() { _ = c.Close(context.WithoutCancel(t.Context())) }()
		for range 71 {
			go func() { _, _ = decide(t.Context(), c, request("a", 1)) }()
		}
		synctest.Wait()
		close(proceed)
		synctest.Wait()
		all := 0
		for _, n := range sizes {
			all += n
		}
		if all != 71 || slices.Max(sizes) != 32 {
			t.Errorf("%d went out together", sizes)
		}
	})
}
