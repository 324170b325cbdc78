package semaphore

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"
)

// lines are the callers of this process who wait for a place, by key. The first one of each line asks Postgres for
// all of them. A caller's channel has an element if the caller has become the first, or a place was released.
type lines map[string][]chan struct{}

// first pause between two questions, which doubles until it is Config.Poll.
const firstPoll = 5 * time.Millisecond

// wait for a place in line.
func (s *Semaphore) wait(ctx context.Context, key string, weight int64) (*Permit, error) {
	own, first := s.join(key)
	defer s.leave(key, own)
	var tooLong <-chan time.Time
	if s.config.MaxWait > 0 {
		timer := time.NewTimer(s.config.MaxWait)
		defer timer.Stop()
		tooLong = timer.C
	}
	again := time.NewTimer(s.config.TTL)
	defer again.Stop()
	poll, free := min(firstPoll, s.config.Poll), s.config.TTL
	for {
		pause := s.config.TTL // of callers behind the first, which are woken
		if first {            // half a poll to one and a half, and not longer than until a permit expires
			pause = max(time.Millisecond, min(poll/2+rand.N(poll), free)) //nolint:gosec // jitter
			poll = min(2*poll, s.config.Poll)
		}
		again.Reset(pause)
		select {
		case <-again.C:
			if !first {
				continue
			}
		case <-own:
			first = true
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-s.ended.Done():
			return nil, ErrClosed
		case <-tooLong:
			s.refused.Add(1)
			return nil, ErrFull
		}
		p, expires, err := s.ask(ctx, key, weight)
		if p != nil || err != nil && !outrun(err) {
			return p, err
		}
		free = expires
	}
}

// join the line of the key, as its first caller or behind others.
func (s *Semaphore) join(key string) (own chan struct{}, first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	own = make(chan struct{}, 1)
	s.lines[key] = append(s.lines[key], own)
	s.waiting.Add(1)
	return own, len(s.lines[key]) == 1
}

// leave the line of the key, and let the next one ask.
func (s *Semaphore) leave(key string, own chan struct{}) {
	s.mu.Lock()
	first := s.lines[key][0] == own
	s.lines[key] = slices.DeleteFunc(s.lines[key], func(c chan struct{}) bool { return c == own })
	if len(s.lines[key]) == 0 {
		delete(s.lines, key)
	}
	s.waiting.Add(-1)
	s.mu.Unlock()
	if first {
		s.wake(key)
	}
}

// wake the first in line.
func (s *Semaphore) wake(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if line := s.lines[key]; len(line) > 0 {
		select {
		case line[0] <- struct{}{}:
		default: // it has not seen that it was woken before
		}
	}
}
