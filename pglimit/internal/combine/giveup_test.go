package combine_test

import (
	"context"
	"errors"
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

// What was refunded belongs to the call, and so to the trace of its first caller.
func TestARefundCarriesWhatItsCallCarries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		goOn := make(chan struct{})
		var carried any
		s := &calls{
			send: func(_ context.Context, requests []rate.Request) ([]rate.Decision, error) {
				<-goOn
				return grant(requests), nil
			},
			giveBack: func(ctx context.Context, _ []rate.Refund) error {
				carried = ctx.Value(key{})
				return ctx.Err()
			},
		}
		c := s.combiner(1)
		ctx, leave := context.WithCancel(context.WithValue(t.Context(), key{}, "trace"))
		ask(ctx, c, "a", 3)
		leave()
		synctest.Wait()
		close(goOn)
		synctest.Wait()
		if carried != "trace" || c.Stats.GivenBack.Load() != 3 {
			t.Errorf("it carries %v, given back %d", carried, c.Stats.GivenBack.Load())
		}
	})
}
