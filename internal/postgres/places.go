package postgres

import (
	"container/list"
	"context"
	"sync"
	"time"
)

// places bounds how many calls use connections of a pool at the same time: when the server has no room
// for as many as the pool asks for, and while it comes back after an outage. Other calls wait for a
// place, in turn: that costs the server nothing, and ends no connection when their time is over.
type places struct {
	mu    sync.Mutex
	taken int
	room  int // for so many connections; 0: for all
	slow  int // so many calls may begin with; 0: all
	grown time.Time
	woken bool      // somebody waits, and is looked after
	queue list.List // of chan struct{}, closed with a place
}

const (
	// soon is the time between attempts while other programs have all the room.
	soon = 20 * time.Millisecond

	// enough calls under way that the start is over.
	enough = 32
)

// enter takes a place, when there is one.
func (p *places) enter(ctx context.Context) error {
	p.mu.Lock()
	if p.room == 0 && p.slow == 0 {
		p.taken++
		p.mu.Unlock()
		return nil
	}
	e := p.queue.PushBack(make(chan struct{}))
	p.wake()
	return p.await(ctx, e)
}

// await the place of a caller who is in the queue. It unlocks.
func (p *places) await(ctx context.Context, e *list.Element) error {
	turn := e.Value.(chan struct{}) //nolint:forcetypeassert // nothing else is in it
	p.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-turn: // it came at the same time
		p.taken--
		p.wake()
	default:
		p.queue.Remove(e)
	}
	return ctx.Err()
}

// leave gives the place up. answered says that its call was answered.
func (p *places) leave(answered bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
	if answered && p.slow > 0 {
		if p.slow++; p.slow > enough {
			p.slow = 0
		}
	}
	if p.queue.Len() > 0 {
		p.wake()
	}
}

// wait for one of the connections that there are, because there is no room for another. If there are
// none, it leaves.
func (p *places) wait(ctx context.Context, works bool) (waited bool, err error) {
	p.mu.Lock()
	p.taken--
	p.room, p.grown = max(1, p.taken), time.Now()
	switch {
	case p.taken > 0:
		err = p.await(ctx, p.queue.PushFront(make(chan struct{})))
		return err == nil, err
	case !works:
		p.wake()
		p.mu.Unlock()
		return false, nil
	}
	p.mu.Unlock() // others have them: nobody of ours gives one back
	timer := time.NewTimer(soon)
	defer timer.Stop()
	select {
	case <-timer.C:
		err = p.enter(ctx)
	case <-ctx.Done():
		err = ctx.Err()
	}
	return err == nil, err
}

// startSlowly lets one call begin, and one more with each that is answered.
func (p *places) startSlowly() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.slow, p.grown = 1, time.Now()
}

// wake those in the queue for whom there is a place. From time to time there is one more: there may be
// room again, or the calls under way may wait for rows.
func (p *places) wake() {
	if now := time.Now(); now.Sub(p.grown) >= pause {
		p.grown = now
		if p.room > 0 {
			p.room++
		}
		if p.slow > 0 {
			p.slow++
		}
	}
	for e := p.queue.Front(); e != nil && p.free(); e = p.queue.Front() {
		p.queue.Remove(e)
		p.taken++
		close(e.Value.(chan struct{})) //nolint:forcetypeassert // nothing else is in it
	}
	if p.queue.Len() > 0 && !p.woken {
		p.woken = true
		time.AfterFunc(pause, func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.woken = false
			p.wake()
		})
	}
}

func (p *places) free() bool {
	return (p.room == 0 || p.taken < p.room) && (p.slow == 0 || p.taken < p.slow)
}
