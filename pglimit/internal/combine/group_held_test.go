package combine_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit/internal/combine"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// rows are held until they are freed.
type rows struct {
	mu    sync.Mutex
	held  map[string]chan struct{}
	named bool // the error says which are held
}

func (r *rows) hold(key string) (free func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.held == nil {
		r.held = make(map[string]chan struct{})
	}
	held := make(chan struct{})
	r.held[key] = held
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.held, key)
		close(held)
	}
}

// send gives up after 20 ms if rows are held, or waits if it is patient.
func (r *rows) send(ctx context.Context, groups [][]rate.Request) error {
	var named []rate.Bucket
	for _, request := range slices.Concat(groups...) {
		r.mu.Lock()
		held := r.held[request.Key]
		r.mu.Unlock()
		switch {
		case held == nil:
		case len(groups) == 1 && !request.Impatient:
			select {
			case <-held:
			case <-ctx.Done():
				return ctx.Err()
			}
		default:
			named = append(named, request.Bucket())
		}
	}
	if len(named) == 0 {
		time.Sleep(time.Millisecond)
		return nil
	}
	time.Sleep(20 * time.Millisecond)
	err := fmt.Errorf("%w: %w", rate.ErrLocked, rate.ErrNothingTaken)
	if r.named {
		slices.SortFunc(named, func(a, b rate.Bucket) int { return strings.Compare(a.Key, b.Key) }) // as rows are locked
		return &rate.HeldError{Held: named, Err: err}
	}
	return err
}

// Two rows are held, one of them for long. Groups for both wait for that one, and the groups for the other
// go on when it is free: those that were in the call that found out, those behind it and those that came later.
func TestARowThatIsHeldForLongStallsNoOtherHeldRow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &rows{named: true}
		c := &groupCalls{send: r.send}
		l := c.lane()
		long, short := r.hold("held"), r.hold("all")
		stalled := []*heardGroup{askGroup(t.Context(), l, groupOf("held+all")), askGroup(t.Context(), l, groupOf("held+all+a"))}
		others := []*heardGroup{askGroup(t.Context(), l, groupOf("all+b"))}
		later(30 * time.Millisecond)
		others = append(others, askGroup(t.Context(), l, groupOf("all+c")))
		short()
		later(100 * time.Millisecond)
		for _, h := range others {
			h.granted(t)
		}
		for _, h := range stalled {
			h.wants(t, errNoAnswer)
		}
		long()
		later(100 * time.Millisecond)
		for _, h := range stalled {
			h.granted(t)
		}
	})
}

// A group that waits in the lane of one held row, and cannot be granted because of another, goes to that
// one's lane.
func TestAGroupGoesToTheRowForWhichItWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &rows{named: true}
		c := &groupCalls{send: r.send}
		l := c.lane()
		short := r.hold("all")
		first := askGroup(t.Context(), l, groupOf("all+b"))
		later(30 * time.Millisecond) // it waits for its row
		long := r.hold("held")
		stalled, other := askGroup(t.Context(), l, groupOf("held+all")), askGroup(t.Context(), l, groupOf("all+c"))
		short()
		later(100 * time.Millisecond)
		first.granted(t)
		other.granted(t)
		stalled.wants(t, errNoAnswer)
		long()
		later(100 * time.Millisecond)
		stalled.granted(t)
	})
}

// While a row is held, its groups wait for it in a call of their own, also those that come later,
// and the others go on. Then all go on.
func TestAHeldRowStallsNobodyElse(t *testing.T) {
	t.Parallel()
	for _, named := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			r := &rows{named: named}
			c := &groupCalls{send: r.send}
			l := c.lane()
			free := r.hold("held")
			first := askGroup(t.Context(), l, groupOf("all+held"))
			second := askGroup(t.Context(), l, groupOf("all+held+b"))
			other := askGroup(t.Context(), l, groupOf("all+c"))
			later(100 * time.Millisecond)
			other.granted(t)
			late := askGroup(t.Context(), l, groupOf("held+d"))
			askGroup(t.Context(), l, groupOf("all+e"))
			later(100 * time.Millisecond)
			if named { // the call that waits and the next one begin at the same time
				c.mu.Lock()
				asked := slices.Sorted(slices.Values(c.asked))
				c.mu.Unlock()
				if want := []string{"all+c", "all+e", "all+held", "all+held!"}; !slices.Equal(asked, want) {
					t.Errorf("asked %q, want %q", asked, want)
				}
			}
			c.mu.Lock()
			before := len(c.asked)
			c.mu.Unlock()
			for range 10 {
				began := time.Now()
				h := askGroup(t.Context(), l, groupOf("all+c"))
				later(2 * time.Millisecond)
				h.granted(t)
				if took := time.Since(began); took > 2*time.Millisecond {
					t.Errorf("another group waited %v", took)
				}
			}
			for _, h := range []*heardGroup{first, second, late} {
				h.wants(t, errNoAnswer)
			}
			free()
			later(100 * time.Millisecond)
			for _, h := range []*heardGroup{first, second, late} {
				h.granted(t)
			}
			c.mu.Lock()
			after := c.asked[before+10:]
			c.mu.Unlock()
			if named && !slices.Equal(after, []string{"all+held+b held+d"}) {
				t.Errorf("afterwards: %q", after)
			}
			if err := l.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// At most two calls wait for held rows. The groups of a third wait for their turn; a caller may
// leave meanwhile.
func TestTwoCallsWaitForHeldRows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &rows{named: true}
		c := &groupCalls{send: r.send}
		l := c.lane()
		free := make(map[string]func())
		heards := make(map[string]*heardGroup)
		for _, key := range []string{"a", "b", "c"} {
			free[key] = r.hold(key)
			heards[key] = askGroup(t.Context(), l, groupOf(key))
			later(30 * time.Millisecond)
		}
		ctx, cancel := context.WithCancel(t.Context())
		leaves := askGroup(ctx, l, groupOf("c+d"))
		c.wants(t, "a", "a!", "b", "b!", "c")
		cancel()
		synctest.Wait()
		leaves.wants(t, context.Canceled)
		free["b"]()
		later(30 * time.Millisecond)
		heards["b"].granted(t)
		c.wants(t, "a", "a!", "b", "b!", "c", "c!")
		free["c"]()
		free["a"]()
		later(30 * time.Millisecond)
		heards["a"].granted(t)
		heards["c"].granted(t)
	})
}

// While others come for two held rows again and again, and give up, the callers of a third have
// their turn.
func TestEveryHeldRowHasItsTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &rows{named: true}
		c := &groupCalls{send: r.send}
		l := c.lane()
		free := make(map[string]func())
		for _, key := range []string{"a", "b", "c"} {
			free[key] = r.hold(key)
		}
		come := func() (c *heardGroup) {
			for _, key := range []string{"a", "b", "c"} {
				c = comeAndLeave(t, l, key)
			}
			later(100 * time.Millisecond)
			return c
		}
		for range 100 {
			come()
		}
		free["c"]()
		for range 50 {
			come()
		}
		come().granted(t)
		free["a"]()
		free["b"]()
		later(3 * time.Second)
	})
}

// comeAndLeave asks, and gives up after a second.
func comeAndLeave(t *testing.T, l *combine.Combiner, key string) *heardGroup {
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	t.Cleanup(cancel)
	return askGroup(ctx, l, groupOf(key))
}
