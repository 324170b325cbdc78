package wait

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// SettleTime is how long a call goes on when all its callers have left: long enough to learn what it
// took. The call that gives that back may take as long. Then its connection is given up.
const SettleTime = time.Second

// Calls are the calls of a stage that sends requests of several callers together.
type Calls struct {
	Stats   Stats
	Running sync.WaitGroup // the goroutines that make them

	aborted context.Context // ends when Close gives up waiting
	abort   context.CancelFunc
}

// Stats count the tokens of callers who had left.
type Stats struct {
	PassedOn  atomic.Int64 // granted, and passed on to others
	GivenBack atomic.Int64 // granted, and given back
	Lost      atomic.Int64 // could not be given back, or may have been taken by a failed call
}

// Call is a call under way. It goes on when callers leave, but is given up when nobody waits any more.
type Call struct {
	Ctx     context.Context
	Waiting atomic.Int64 // callers
	End     func()       // does nothing if it has ended
}

// Begin makes the Calls ready to use.
func (c *Calls) Begin() {
	c.aborted, c.abort = context.WithCancel(context.Background())
}

// Start a Call. It has the values of the first caller's context, such as a trace, but does not end with that context.
func (c *Calls) Start(first context.Context) *Call {
	ctx, cancel := context.WithCancel(c.aborted)
	return &Call{Ctx: withValues{ctx, first}, End: cancel}
}

// StartOwn starts a Call that ends with ctx, that of the caller who makes it.
func (c *Calls) StartOwn(ctx context.Context) *Call {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(c.aborted, cancel)
	return &Call{Ctx: ctx, End: func() { stop(); cancel() }}
}

// withValues is a context that has the values of another one too, but does not end with it. It is
// cheaper than context.WithoutCancel and AfterFunc, which every call would need.
type withValues struct {
	context.Context
	values context.Context //nolint:containedctx // it is a context
}

func (c withValues) Value(key any) any {
	if value := c.Context.Value(key); value != nil {
		return value
	}
	return c.values.Value(key)
}

// Leave notes that a caller has left.
func (c *Call) Leave() {
	if c.Waiting.Add(-1) == 0 {
		timer := time.AfterFunc(SettleTime, c.End)
		context.AfterFunc(c.Ctx, func() { timer.Stop() })
	}
}

// GiveBack gives tokens back that were granted to callers who have left. Close may end the call.
func (c *Calls) GiveBack(call *Call, refunds []rate.Refund, giveBack func(context.Context, []rate.Refund) error) {
	if len(refunds) == 0 {
		return
	}
	c.Stats.GiveBack(withValues{c.aborted, call.Ctx}, refunds, giveBack)
}

// GiveBack makes the call that gives tokens back, and counts them.
func (s *Stats) GiveBack(ctx context.Context, refunds []rate.Refund, giveBack func(context.Context, []rate.Refund) error) {
	ctx, cancel := context.WithTimeout(ctx, SettleTime)
	defer cancel()
	counter := &s.GivenBack
	if err := giveBack(ctx, refunds); err != nil {
		counter = &s.Lost
	}
	for i := range refunds {
		counter.Add(refunds[i].Tokens)
	}
}

// Aborted says whether Close has given up waiting.
func (c *Calls) Aborted() bool { return c.aborted.Err() != nil }

// Blame adds ErrClosed to the error of a call that may have failed because Close gave it up.
func (c *Calls) Blame(err error) error {
	if c.Aborted() && !errors.Is(err, rate.ErrClosed) {
		return fmt.Errorf("%w: %v", rate.ErrClosed, err) //nolint:errorlint // not what the caller did
	}
	return err
}

// Close lets waiting callers have their answers as long as ctx lasts, and returns when no
// goroutine is left. end gives up all waiters, and says whether there was a call or a caller: then
// the error is that of ctx. Nobody may join any more.
func (c *Calls) Close(ctx context.Context, end func() (busy bool)) error {
	done := make(chan struct{})
	go func() {
		c.Running.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	busy := end()
	c.abort()
	busy = end() || busy // what went back into a queue meanwhile
	<-done
	if busy {
		return ctx.Err()
	}
	return nil
}
