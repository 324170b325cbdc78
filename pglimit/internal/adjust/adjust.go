// Package adjust asks a function of the user's which share of the limits holds now.
package adjust

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/pglimit/ratelimit/internal/bucket"
	"github.com/pglimit/ratelimit/pglimit/internal/claims"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Whole is the share, in percent, at which the limits hold as they are.
const Whole = 100

const (
	// every is the time from an answer to the next question.
	every = 100 * time.Millisecond

	// retry is the RetryAfter of a request that the share could never grant: until then it may have grown.
	retry = time.Second

	// patience is how long an answer may take. A function that takes longer has failed, and is not asked again before
	// it returns.
	patience = time.Second
)

var errHangs = fmt.Errorf("no answer within %v", patience)

// Share is what the function said last. A goroutine asks it, so nobody waits for it. A nil Share is the whole.
type Share struct {
	Failures atomic.Int64 // answers that are none

	ask     func() float64
	changed func(percent int64, err error) // is told the first failure, and nil when there is an answer again
	percent atomic.Int64
	failing bool

	answered chan struct{} // has an element after the first answer, or failure
	stop     context.CancelFunc
	stopped  chan struct{}
}

// New begins to ask the function, and waits for the first answer, but no longer than until the second question. Nil is
// never asked.
func New(ask func() float64, changed func(percent int64, err error)) *Share {
	if ask == nil {
		return nil
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &Share{ask: ask, changed: changed, answered: make(chan struct{}, 1), stop: stop, stopped: make(chan struct{})}
	s.percent.Store(Whole)
	go s.run(ctx)
	select {
	case <-s.answered:
	case <-time.After(every):
	}
	return s
}

// Answer gives the claim the share of its limits that holds now. It answers a claim that could never be granted by it.
func (s *Share) Answer(c *claims.Claim) (answered bool) {
	percent := s.Percent()
	if percent == Whole {
		return false
	}
	fits := func(r *rate.Request) bool { return percent > 0 && r.Unit <= r.Limit.Burst }
	for i := range c.Requests {
		r := &c.Requests[i]
		if percent > 0 {
			r.Limit = bucket.Share(r.Limit, percent, Whole)
			r.Ahead = min(r.Ahead, rate.MaxWindow-r.Limit.Window())
		}
		answered = answered || !fits(r)
	}
	for i := range c.Requests {
		if !answered {
			continue
		}
		c.Decisions[i] = rate.Decision{Allowed: true, Source: rate.FromAdjust} // the other buckets of a group may have the tokens
		if !fits(&c.Requests[i]) {
			c.Decisions[i] = rate.Decision{RetryAfter: retry, ResetAfter: retry, Source: rate.FromAdjust}
		}
	}
	return answered
}

// Of is the share of a limit that holds now, at least one token.
func (s *Share) Of(limit rate.Limit) rate.Limit {
	return bucket.Share(limit, max(1, s.Percent()), Whole)
}

// Percent of the limits that holds now, from 0 to Whole.
func (s *Share) Percent() int64 {
	if s == nil {
		return Whole
	}
	return s.percent.Load()
}

// Close ends the questions, and waits for the answer to the last one, for as long as it may take or until ctx ends. The
// last share stays.
func (s *Share) Close(ctx context.Context) {
	if s == nil {
		return
	}
	s.stop()
	select {
	case <-s.stopped:
	case <-ctx.Done():
	}
}

func (s *Share) run(ctx context.Context) {
	defer close(s.stopped)
	for {
		answers := make(chan answer, 1)
		go s.call(answers)
		select {
		case a := <-answers:
			s.learn(a)
		case <-time.After(patience):
			s.learn(answer{err: errHangs})
			select {
			case <-answers: // too late
			case <-ctx.Done():
				return
			}
		}
		select {
		case s.answered <- struct{}{}:
		default:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(every):
		}
	}
}

type answer struct {
	share float64
	err   error
}

// call the function.
func (s *Share) call(answers chan<- answer) {
	a := answer{err: errors.New("it called runtime.Goexit")}
	defer func() {
		if what := recover(); what != nil {
			a.err = fmt.Errorf("panic: %v\n%s", what, debug.Stack())
		}
		answers <- a
	}()
	a.share = s.ask()
	a.err = nil
	if !(a.share >= 0 && a.share <= 1) { // nor is NaN
		a.err = fmt.Errorf("%v is not from 0 to 1", a.share)
	}
}

func (s *Share) learn(a answer) {
	if a.err == nil {
		s.percent.Store(int64(a.share*Whole + 1e-9)) // 0.29 × 100 is less than 29
	} else {
		s.Failures.Add(1)
	}
	if failing := a.err != nil; failing != s.failing {
		s.failing = failing
		s.changed(s.percent.Load(), a.err)
	}
}
