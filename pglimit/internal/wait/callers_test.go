package wait_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit/internal/wait"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

func TestTheNumberOfCallersIsBounded(t *testing.T) {
	t.Parallel()
	c := wait.NewCallers(3)
	for _, test := range []struct {
		enter, leave int
		err          error
		size         int64
	}{
		{enter: 2, size: 2},
		{enter: 2, err: rate.ErrOverloaded, size: 2},
		{enter: 1, size: 3},
		{enter: 1, err: rate.ErrOverloaded, size: 3},
		{leave: 2, size: 1},
		{enter: 2, size: 3},
		{leave: 3, size: 0},
		{enter: 4, err: rate.ErrOverloaded, size: 0},
	} {
		if test.leave > 0 {
			c.Leave(test.leave)
		} else if err := c.Enter(test.enter); !errors.Is(err, test.err) {
			t.Errorf("%+v: %v", test, err)
		}
		if c.Size() != test.size || c.Closed() {
			t.Errorf("%+v: size %d, closed %t", test, c.Size(), c.Closed())
		}
	}
}

// Who is turned away takes no room, not even for a moment: others do not fail with it.
func TestWhoIsTooManyIsNotInTheWay(t *testing.T) {
	t.Parallel()
	const singles = 8
	c := wait.NewCallers(100)
	var failed, entered, done atomic.Int64
	var groups, others sync.WaitGroup
	for range 4 {
		groups.Go(func() {
			for done.Load() < singles {
				if c.Enter(101) == nil {
					t.Error("101 of 100")
				}
			}
		})
	}
	for range singles {
		others.Go(func() {
			defer done.Add(1)
			for range 20_000 {
				if c.Enter(1) != nil {
					failed.Add(1)
					continue
				}
				entered.Add(1)
				c.Leave(1)
			}
		})
	}
	others.Wait()
	groups.Wait()
	if failed.Load() > 0 || c.Size() != 0 {
		t.Errorf("%d of %d failed, size %d", failed.Load(), failed.Load()+entered.Load(), c.Size())
	}
}

func TestCloseWaitsForTheLast(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := wait.NewCallers(10)
		for range 3 {
			if err := c.Enter(1); err != nil {
				t.Error(err)
			}
		}
		closed := make(chan error, 2)
		for range 2 { // both wait
			go func() { closed <- c.Close(t.Context()) }()
		}
		synctest.Wait()
		if err := c.Enter(1); !errors.Is(err, rate.ErrClosed) || !c.Closed() || c.Size() != 3 {
			t.Errorf("%v, closed %t, size %d", err, c.Closed(), c.Size())
		}
		// One that has no time leaves, and the others wait on.
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if err := c.Close(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		c.Leave(2)
		synctest.Wait()
		if len(closed) != 0 {
			t.Error("one is there still")
		}
		c.Leave(1)
		if one, two := <-closed, <-closed; one != nil || two != nil || c.Size() != 0 {
			t.Errorf("%v, %v, size %d", one, two, c.Size())
		}
		// Now nobody has to wait, even without time.
		if err := c.Close(ctx); err != nil {
			t.Error(err)
		}
		if err := c.Enter(1); !errors.Is(err, rate.ErrClosed) {
			t.Error(err)
		}
	})
}

func TestCloseWithoutCallers(t *testing.T) {
	t.Parallel()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	c := wait.NewCallers(1)
	for range 2 {
		if err := c.Close(ended); err != nil || !c.Closed() || c.Size() != 0 {
			t.Errorf("%v, closed %t, size %d", err, c.Closed(), c.Size())
		}
	}
}

// A call was given up before its tokens could be given back: that call has as much time of its own.
func TestARefundOutlivesItsCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var calls wait.Calls
		calls.Begin()
		call := calls.Start(t.Context())
		call.Waiting.Store(1)
		call.Leave()
		time.Sleep(wait.SettleTime - 100*time.Millisecond)
		calls.GiveBack(call, []rate.Refund{{Request: rate.Request{Tokens: 3}}}, func(ctx context.Context, _ []rate.Refund) error {
			select {
			case <-time.After(wait.SettleTime / 2):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		if back, lost := calls.Stats.GivenBack.Load(), calls.Stats.Lost.Load(); back != 3 || lost != 0 || call.Ctx.Err() == nil {
			t.Errorf("%d given back, %d lost, of 3; %v", back, lost, call.Ctx.Err())
		}
	})
}

// Close returns when no goroutine is left, also if its context has ended.
func TestCloseWaitsForTheCallsThatItEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var calls wait.Calls
		calls.Begin()
		call, over := calls.Start(t.Context()), false
		calls.Running.Go(func() {
			<-call.Ctx.Done()
			time.Sleep(time.Second)
			over = true
		})
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := calls.Close(ended, func() bool { return true }); !errors.Is(err, context.Canceled) || !over {
			t.Errorf("%v; the call is over: %t", err, over)
		}
	})
}
