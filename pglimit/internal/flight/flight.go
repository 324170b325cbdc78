// Package flight has calls that several callers wait for: they go on when callers leave, but are
// given up when nobody waits any more.
package flight

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

// maxPatient is how many calls of a Stage may wait for rows that somebody else holds locked, each on
// a connection of its own. The callers of other held rows wait for their turn.
const maxPatient = 2

// Stage is what a stage has that sends requests of several callers together.
type Stage struct {
	Stats Stats

	Running  sync.WaitGroup // its goroutines
	Patience chan struct{}  // has room for each call that may wait for a held row

	aborted context.Context // ends when Close gives up waiting
	abort   context.CancelFunc
}

// Stats count the tokens of callers who had left.
type Stats struct {
	PassedOn  atomic.Int64 // granted, and passed on to others
	GivenBack atomic.Int64 // granted, and given back
	Lost      atomic.Int64 // could not be given back, or may have been taken by a failed call
}

// Flight is a call under way.
type Flight struct {
	Ctx     context.Context
	Waiting atomic.Int64 // callers
	Land    func()       // ends the call; does nothing if it has ended
}

// Begin makes the Stage ready to use.
func (s *Stage) Begin() {
	s.Patience = make(chan struct{}, maxPatient)
	s.aborted, s.abort = context.WithCancel(context.Background())
}

// TakeOff makes a Flight for that many callers. It has the values of the first caller's context, such
// as a trace, but does not end with that context.
func (s *Stage) TakeOff(first context.Context, callers int) *Flight {
	ctx, cancel := context.WithCancel(context.WithoutCancel(first))
	stop := context.AfterFunc(s.aborted, cancel)
	if s.Aborted() {
		cancel() // at once: AfterFunc takes its time
	}
	f := &Flight{Ctx: ctx, Land: func() { stop(); cancel() }}
	f.Waiting.Store(int64(callers))
	return f
}

// Agree says whether the requests can be in one call with those before, whose limits it is told: a
// call has one limit for each bucket. It adds theirs.
func Agree(limits map[rate.Bucket]rate.Limit, requests ...rate.Request) bool {
	for i := range requests {
		bucket := requests[i].Bucket()
		if limit, known := limits[bucket]; known && limit != requests[i].Limit {
			return false
		}
		limits[bucket] = requests[i].Limit
	}
	return true
}

// Leave notes that a caller has left.
func (f *Flight) Leave() {
	if f.Waiting.Add(-1) == 0 {
		timer := time.AfterFunc(SettleTime, f.Land)
		context.AfterFunc(f.Ctx, func() { timer.Stop() })
	}
}

// GiveBack gives tokens back that were granted to callers who have left. Close may end the call.
func (s *Stage) GiveBack(f *Flight, refunds []rate.Refund, giveBack func(context.Context, []rate.Refund) error) {
	if len(refunds) == 0 {
		return
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(f.Ctx))
	defer cancel()
	defer context.AfterFunc(s.aborted, cancel)()
	s.Stats.GiveBack(ctx, refunds, giveBack)
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
func (s *Stage) Aborted() bool { return s.aborted.Err() != nil }

// Blame adds ErrClosed to the error of a call that may have failed because Close gave it up.
func (s *Stage) Blame(err error) error {
	if s.Aborted() && !errors.Is(err, rate.ErrClosed) {
		return fmt.Errorf("%w: %v", rate.ErrClosed, err) //nolint:errorlint // not what the caller did
	}
	return err
}

// Close lets waiting callers have their answers as long as ctx lasts, and returns when no
// goroutine is left. end gives up all waiters, and says whether there was a call or a caller: then
// the error is that of ctx. Nobody may join any more.
func (s *Stage) Close(ctx context.Context, end func() (busy bool)) error {
	done := make(chan struct{})
	go func() {
		s.Running.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	busy := end()
	s.abort()
	busy = end() || busy // what went back into a queue meanwhile
	<-done
	if busy {
		return ctx.Err()
	}
	return nil
}
