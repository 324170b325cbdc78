package combine_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// The callers of a held row wait in one line: those in the call that found it held, those behind it, and those who came
// later. Others go on meanwhile.
func TestCallersOfAHeldRowStayInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var served []int64 // for which cost
		g, free := make(gate), make(chan struct{})
		s := &calls{send: func(ctx context.Context, requests []rate.Request) ([]rate.Decision, error) {
			if requests[0].Key == "z" {
				return g.send(ctx, requests)
			}
			for _, r := range requests {
				switch {
				case r.Key != "a":
					continue
				case r.Impatient:
					select {
					case <-free:
					case <-time.After(20 * time.Millisecond):
						return nil, fmt.Errorf("%w: %w", rate.ErrLocked, rate.ErrNothingTaken)
					}
				default:
					<-free
				}
				mu.Lock()
				served = append(served, r.Tokens)
				mu.Unlock()
			}
			return grant(requests), nil
		}}
		c := s.combiner(1)
		ctx, leave := context.WithCancel(t.Context())
		ask(t.Context(), c, "z", 1)
		var others []*heard
		for i := range int64(15) {
			caller := t.Context()
			if i%5 == 2 {
				caller = ctx
			}
			switch i {
			case 5:
				g.open()
			case 10:
				later(100 * time.Millisecond)
			}
			ask(caller, c, "a", 1+i)
			others = append(others, ask(t.Context(), c, "b", 1))
		}
		leave()
		later(100 * time.Millisecond)
		for i, h := range others {
			if h.err != nil || !h.Allowed {
				t.Errorf("number %d of another row: %+v", i, h)
			}
		}
		close(free)
		later(100 * time.Millisecond)
		var stay []int64
		for _, n := range served { // who leaves when his call is under way is served, too
			if n%5 != 3 {
				stay = append(stay, n)
			}
		}
		if want := []int64{1, 2, 4, 5, 6, 7, 9, 10, 11, 12, 14, 15}; !slices.Equal(stay, want) || !slices.IsSorted(served) {
			t.Errorf("served %v, of them %v stay, want %v", served, stay, want)
		}
	})
}
