package pglimit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// renew settles the holder's lease, if it has one, and takes the next one, of so many
// tokens at least; if zero, none. Meanwhile nothing can be spent: what is unspent belongs
// to the bucket again.
func (s *leases) renew(h *holder, tokens int64) error {
	unspent, old := h.unspent.Swap(0), h.terms.Load()
	request := LeaseRequest{
		Limiter: s.limiter.config.Name, Key: h.key, Limit: s.limiter.config.Limit, Durability: s.limiter.config.Durability,
		Share: leaseShare, TTL: s.ttl,
	}
	asked := s.now()
	if old != nil {
		request.Settle, request.Spent = old.Lease, old.Tokens-unspent
	}
	if tokens > 0 {
		request.Tokens = max(tokens, s.chunk(old, request.Spent, asked))
	}
	ctx, cancel := context.WithTimeout(s.ctx, s.ttl)
	defer cancel()
	s.limiter.counters.leaseTrips.Add(1)
	lease, err := s.leaser.Lease(ctx, s.limiter.db, request)
	s.limiter.counters.unspentTokens.Add(unspent)
	s.limiter.counters.leasedTokens.Add(lease.Tokens)

	if tokens > 0 && (err != nil || lease.Tokens < max(tokens, busy)) {
		h.mu.Lock()
		h.pause = s.now() + s.hold() // it is down, or has too little to set any aside
		h.mu.Unlock()
	}
	if err != nil || lease.Tokens == 0 {
		h.terms.Store(nil)
		return err
	}
	lasts := lease.Until.Sub(lease.At)
	h.terms.Store(&terms{Lease: lease, asked: asked, got: s.now(), until: asked + lasts - lasts/1024}) // as in memory.learn
	h.unspent.Store(lease.Tokens)
	return nil
}

// chunk is how many tokens are spent in a hold, judged by the last lease.
func (s *leases) chunk(old *terms, spent int64, now time.Duration) int64 {
	if old == nil {
		return busy
	}
	perHold := float64(spent) * float64(s.hold()) / float64(max(now-old.got, time.Microsecond))
	return max(busy, int64(min(perHold, float64(old.Tokens)*growth)))
}

// keep looks after the leases, once in a hold, until there are none: those that are idle
// are settled.
func (s *leases) keep() {
	tick := time.NewTicker(s.hold())
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-s.ctx.Done():
			return
		}
		for _, h := range s.holders() {
			s.look(h)
		}
		s.mu.Lock()
		if len(s.active) == 0 || s.closed {
			s.keeping = false
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
	}
}

func (s *leases) holders() []*holder {
	s.mu.Lock()
	defer s.mu.Unlock()
	holders := make([]*holder, 0, len(s.active))
	for h := range s.active {
		holders = append(holders, h)
	}
	return holders
}

// look after one: if nothing was spent since the last look, it is settled.
func (s *leases) look(h *holder) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch terms, unspent := h.terms.Load(), h.unspent.Load(); {
	case h.fetching != nil:
	case terms == nil:
		s.mu.Lock()
		delete(s.active, h)
		s.mu.Unlock()
	case terms == h.seen && unspent == h.rest:
		s.fetch(h, 0)
	default:
		h.seen, h.rest = terms, unspent
	}
}

// close settles every lease, as long as ctx lasts.
func (s *leases) close(ctx context.Context) error {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	s.mu.Unlock()
	if !first {
		s.running.Wait()
		return nil
	}
	defer s.running.Wait()
	defer s.cancel()
	defer context.AfterFunc(ctx, s.cancel)()

	holders := make(chan *holder)
	var settlers sync.WaitGroup
	var mu sync.Mutex
	var failed int
	var why error
	for range settlersAtClose {
		settlers.Go(func() {
			for h := range holders {
				if err := s.settle(h); err != nil {
					mu.Lock()
					failed, why = failed+1, err
					mu.Unlock()
				}
			}
		})
	}
	for _, h := range s.holders() {
		holders <- h
	}
	close(holders)
	settlers.Wait()
	if failed > 0 {
		return fmt.Errorf("pglimit: %d leases could not be given back, their tokens are missed for up to %v: %w", failed, s.ttl, errors.Join(why, ctx.Err()))
	}
	return nil
}

// settlersAtClose is how many connections Close uses.
const settlersAtClose = 4

// settle for good.
func (s *leases) settle(h *holder) error {
	h.mu.Lock()
	f := h.fetching
	h.mu.Unlock()
	if f != nil {
		<-f.done
	}
	if h.terms.Load() == nil {
		return nil
	}
	return s.renew(h, 0)
}
