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

// A lane uses its memory again and again: what one batch was about must not be found in the
// next, which has fewer keys, and in another order.
func TestABatchKnowsNothingOfTheOneBefore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := make(gate)
		s := &calls{send: g.send}
		c := s.combiner(1)
		heards := []*heard{ask(t.Context(), c, "z", 1)}
		ask20 := func(keys ...int) {
			for _, key := range keys {
				heards = append(heards, ask(t.Context(), c, fmt.Sprint("k", key), 1))
			}
			g.open()
		}
		var up []int
		for key := range 20 {
			up = append(up, key, key)
		}
		ask20(up...)
		ask20(19, 3, 19)
		slices.Reverse(up)
		ask20(up...)
		ask20(7)
		g.open()
		if s.asked[2] != "k19:2/1 k3:1" || !strings.HasPrefix(s.asked[3], "k19:2/1 k18:2/1 ") || strings.Count(s.asked[3], ":2/1") != 20 || s.asked[4] != "k7:1" {
			t.Errorf("asked %q", s.asked[2:])
		}
		for i, h := range heards {
			if h.err != nil || !h.Allowed {
				t.Errorf("number %d: %+v", i, h)
			}
		}
	})
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

// A request behind one that is sent for the same bucket is sent too, whatever the memory knows: what it is told depends on
// what that one takes.
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
