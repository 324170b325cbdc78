package combine_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// A call goes on for as long as one of its callers waits, whoever else has left.
func TestACallIsNotGivenUpWhileSomebodyWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		goOn := make(chan struct{})
		s := &calls{send: func(ctx context.Context, requests []rate.Request) ([]rate.Decision, error) {
			select {
			case <-goOn:
				return grant(requests), nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}}
		c := s.combiner(1)
		first := ask(t.Context(), c, "z", 1)
		ctx, leave := context.WithCancel(t.Context())
		leavers := []*heard{ask(ctx, c, "a", 1), ask(ctx, c, "b", 1)}
		stays := ask(t.Context(), c, "b", 1)
		goOn <- struct{}{} // now the others are under way
		synctest.Wait()
		leave()
		later(time.Minute)
		if !errors.Is(stays.err, errNoAnswer) {
			t.Fatalf("the call was given up, though somebody waits: %+v", stays)
		}
		goOn <- struct{}{}
		synctest.Wait()
		for _, h := range leavers {
			if !errors.Is(h.err, context.Canceled) {
				t.Errorf("did not leave: %+v", h)
			}
		}
		if !first.Allowed || !stays.Allowed || stays.err != nil {
			t.Errorf("%+v, %+v", first, stays)
		}
	})
}

// Who leaves just before it would have been answered from memory has counted itself out: it
// is not counted twice, or the call would not be made for those who are left.
func TestWhoLeavesBeforeTheMemoryAnswersIsCountedOutOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		goOn := make(chan struct{})
		asked := uint64(0)
		s := &calls{
			send: func(_ context.Context, requests []rate.Request) ([]rate.Decision, error) {
				<-goOn
				return grant(requests), nil
			},
			learned: func() uint64 { // called when a batch has been formed
				if asked++; asked == 2 {
					<-goOn
				}
				return asked
			},
			recall: func(r *rate.Request) (rate.Decision, bool) {
				return rate.Decision{Source: rate.FromMemory}, asked > 1 && r.Key == "a"
			},
		}
		c := s.combiner(1)
		ask(t.Context(), c, "z", 1)
		ctx, leave := context.WithCancel(t.Context())
		gone, denied, stays := ask(ctx, c, "a", 1), ask(t.Context(), c, "a", 1), ask(t.Context(), c, "b", 1)
		goOn <- struct{}{}
		synctest.Wait() // the batch has been formed, and nobody is answered yet
		leave()
		synctest.Wait()
		close(goOn)
		synctest.Wait()
		if !errors.Is(gone.err, context.Canceled) || denied.err != nil || denied.Allowed || denied.Source != rate.FromMemory {
			t.Errorf("%+v, %+v", gone, denied)
		}
		if stays.err != nil || !stays.Allowed {
			t.Errorf("who is left has %+v; asked %q", stays, s.asked)
		}
	})
}

// A call belongs to the trace of its first caller, and does not end with him; so does what it gives back.
func TestACallCarriesWhatItsFirstCallerCarries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		goOn := make(chan struct{})
		var call, carried any
		s := &calls{
			send: func(ctx context.Context, requests []rate.Request) ([]rate.Decision, error) {
				<-goOn
				call = ctx.Value(key{})
				return grant(requests), ctx.Err()
			},
			giveBack: func(ctx context.Context, _ []rate.Refund) error {
				carried = ctx.Value(key{})
				return ctx.Err()
			},
		}
		c := s.combiner(1)
		ctx, leave := context.WithCancel(context.WithValue(t.Context(), key{}, "trace"))
		ask(t.Context(), c, "z", 1)
		ask(ctx, c, "a", 3)
		goOn <- struct{}{}
		synctest.Wait()
		leave()
		synctest.Wait()
		close(goOn)
		synctest.Wait()
		if call != "trace" || carried != "trace" || c.Stats.GivenBack.Load() != 3 {
			t.Errorf("the call carries %v, the refund %v, given back %d", call, carried, c.Stats.GivenBack.Load())
		}
	})
}

// A caller who finds the lane idle makes his call himself. It ends with his context, as without combining: what it took
// may be lost. Who has come meanwhile is sent next, and neither ends nor waits for it.
func TestTheCallOfALoneCallerEndsWithHisContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &calls{send: func(ctx context.Context, requests []rate.Request) ([]rate.Decision, error) {
			if requests[0].Key == "hangs" {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return grant(requests), nil
		}}
		c := s.combiner(1)
		ctx, cancel := context.WithCancel(t.Context())
		alone, next := ask(ctx, c, "hangs", 3), ask(t.Context(), c, "b", 1)
		if !errors.Is(alone.err, errNoAnswer) || !errors.Is(next.err, errNoAnswer) {
			t.Fatalf("%+v, %+v", alone, next)
		}
		cancel()
		synctest.Wait()
		if !errors.Is(alone.err, context.Canceled) || next.err != nil || !next.Allowed {
			t.Errorf("%+v, %+v", alone, next)
		}
		if lost := c.Stats.Lost.Load(); lost != 3 {
			t.Errorf("%d lost", lost)
		}
		if last := ask(t.Context(), c, "c", 1); last.err != nil || !last.Allowed {
			t.Errorf("%+v", last)
		}
	})
}

// Whatever ends the goroutine of a caller who makes his own call, a panic that he recovers from too: others go on.
func TestALoneCallerWhoseGoroutineEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &calls{send: func(_ context.Context, requests []rate.Request) ([]rate.Decision, error) {
			if requests[0].Key == "ends" {
				time.Sleep(time.Second)
				runtime.Goexit()
			}
			return grant(requests), nil
		}}
		c := s.combiner(1)
		ask(t.Context(), c, "ends", 1)
		queued := ask(t.Context(), c, "a", 1)
		later(time.Second)
		if next := ask(t.Context(), c, "b", 1); !queued.Allowed || !next.Allowed {
			t.Errorf("%+v, %+v", queued, next)
		}
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// Some of those who waited have their answers already: from the memory, from a call for their bucket alone, or they
// wait in the lane of a held row. Who is left leaves, and the call is given up.
func TestACallIsGivenUpThoughOthersWereAnsweredMeanwhile(t *testing.T) {
	t.Parallel()
	locked := fmt.Errorf("%w: %w", rate.ErrLocked, rate.ErrNothingTaken)
	for name, test := range map[string]struct{ batch, alone error }{
		"from the memory":    {},
		"alone":              {batch: rate.ErrNothingTaken},
		"alone, by an error": {batch: rate.ErrNothingTaken, alone: rate.ErrNothingTaken},
		"later, being held":  {batch: rate.ErrNothingTaken, alone: locked},
	} {
		synctest.Test(t, func(t *testing.T) {
			g, learned, ended := make(gate), uint64(0), time.Time{}
			s := &calls{
				learned: func() uint64 { learned++; return learned },
				recall:  func(r *rate.Request) (d rate.Decision, known bool) { return d, r.Key == "a" && test.batch == nil },
			}
			s.send = func(ctx context.Context, requests []rate.Request) ([]rate.Decision, error) {
				switch {
				case requests[0].Key == "z":
					return g.send(ctx, requests)
				case len(requests) > 1:
					return nil, test.batch
				case requests[0].Key == "b":
					<-ctx.Done()
					ended = time.Now()
					return nil, ctx.Err()
				case requests[0].Impatient && test.alone != nil:
					return nil, test.alone
				}
				return grant(requests), nil
			}
			c := s.combiner(1)
			ask(t.Context(), c, "z", 1)
			ctx, leave := context.WithCancel(t.Context())
			a, b := ask(t.Context(), c, "a", 1), ask(ctx, c, "b", 1)
			g.open()
			left := time.Now()
			leave()
			later(2 * time.Second)
			if took := ended.Sub(left); took != time.Second || !errors.Is(b.err, context.Canceled) {
				t.Errorf("%s: given up after %v: %+v", name, took, b)
			}
			if failed := name == "alone, by an error"; failed != (a.err != nil) {
				t.Errorf("%s: %+v", name, a)
			}
		})
	}
}

// Close that has no time says so, whichever lane has a call under way, and its caller is told.
func TestCloseWithoutTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &calls{send: func(ctx context.Context, _ []rate.Request) ([]rate.Decision, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}}
		c := s.combiner(8)
		hangs, queued := ask(t.Context(), c, "a", 1), ask(t.Context(), c, "a", 1)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := c.Close(ended); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		synctest.Wait()
		if !errors.Is(hangs.err, rate.ErrClosed) || !errors.Is(queued.err, rate.ErrClosed) {
			t.Errorf("%+v, %+v", hangs, queued)
		}
	})
}
