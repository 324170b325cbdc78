package wire

import (
	"net"
	"os"
	"sync"
	"time"
)

// pause is a wait that a deadline can end, also one that is set meanwhile.
type pause interface {
	// until returns nil at that time, os.ErrDeadlineExceeded once the deadline has passed, or
	// net.ErrClosed after close. Not for concurrent use with itself.
	until(due time.Time) error

	// setDeadline counts for this and for later waits. Zero: none.
	setDeadline(t time.Time)

	close()
}

// timerPause waits on Go's timers, which may fire a millisecond late when the process is idle.
type timerPause struct {
	mu       sync.Mutex
	deadline time.Time
	closed   bool
	changed  chan struct{} // closed, and made again, when one of the two changes
}

func newTimerPause() *timerPause { return &timerPause{changed: make(chan struct{})} }

func (p *timerPause) until(due time.Time) error {
	for {
		p.mu.Lock()
		deadline, closed, changed := p.deadline, p.closed, p.changed
		p.mu.Unlock()
		now := time.Now()
		wait := due.Sub(now)
		switch {
		case closed:
			return net.ErrClosed
		case !deadline.IsZero() && !now.Before(deadline):
			return os.ErrDeadlineExceeded
		case wait <= 0:
			return nil
		case !deadline.IsZero():
			wait = min(wait, deadline.Sub(now))
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-changed:
		}
		timer.Stop()
	}
}

func (p *timerPause) setDeadline(t time.Time) { p.change(func() { p.deadline = t }) }

func (p *timerPause) close() { p.change(func() { p.closed = true }) }

func (p *timerPause) change(what func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	what()
	close(p.changed)
	p.changed = make(chan struct{})
}
