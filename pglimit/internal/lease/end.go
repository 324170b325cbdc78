package lease

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// keep looks after the leases, once in a hold, until there are none.
func (s *Leases) keep() {
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

func (s *Leases) holders() []*holder {
	s.mu.Lock()
	defer s.mu.Unlock()
	holders := make([]*holder, 0, len(s.active))
	for h := range s.active {
		holders = append(holders, h)
	}
	return holders
}

// look settles a holder's lease if nothing was spent since the last look, or if it is about to
// expire.
func (s *Leases) look(h *holder) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch terms := h.terms.Load(); {
	case h.fetching != nil:
	case terms == nil:
		s.mu.Lock()
		delete(s.active, h)
		s.mu.Unlock()
	case terms == h.seen && terms.unspent.Load() == h.rest, s.now() >= terms.until-2*s.hold():
		s.fetch(h, want{})
	default:
		h.seen, h.rest = terms, terms.unspent.Load()
	}
}

// Drop settles the bucket's lease, or those of all buckets if it is the zero Bucket. No other is
// taken for a hold.
func (s *Leases) Drop(ctx context.Context, bucket rate.Bucket) error {
	if s == nil {
		return nil
	}
	var holders []*holder
	if h, known := s.known.GetIfPresent(bucket); known {
		holders = []*holder{h}
	} else if bucket == (rate.Bucket{}) {
		holders = s.holders()
	}
	for _, h := range holders {
		s.pause(h) // begins to settle them all, before any is waited for
	}
	for _, h := range holders {
		for f := s.pause(h); f != nil; f = s.pause(h) {
			select {
			case <-f.done:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return nil
}

// pause stops fetching for a hold, and settles the lease. It returns the fetch to wait for, or
// nil if there is no lease.
func (s *Leases) pause(h *holder) *fetch {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pause = s.now() + s.hold()
	if h.fetching != nil || h.terms.Load() == nil {
		return h.fetching
	}
	return s.fetch(h, want{})
}

// Close settles every lease, as long as ctx lasts.
func (s *Leases) Close(ctx context.Context) error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	s.mu.Unlock()
	if !first {
		select {
		case <-s.settled:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	defer close(s.settled)
	defer s.running.Wait()
	defer s.cancel()
	defer context.AfterFunc(ctx, s.cancel)()

	var failed atomic.Int64
	var settlers errgroup.Group
	settlers.SetLimit(maxLeaseCalls)
	for _, h := range s.holders() {
		settlers.Go(func() error {
			err := s.settle(h)
			if err != nil {
				failed.Add(1)
			}
			return err
		})
	}
	if err := settlers.Wait(); err != nil {
		return fmt.Errorf("pglimit: %d leases could not be given back, their tokens are missed for up to %v: %w", failed.Load(), s.config.TTL, errors.Join(err, ctx.Err()))
	}
	return nil
}

func (s *Leases) settle(h *holder) error {
	h.mu.Lock()
	f := h.fetching
	h.mu.Unlock()
	if f != nil {
		<-f.done
		if f.err != nil {
			return f.err
		}
	}
	switch terms := h.terms.Load(); {
	case terms == nil:
		return nil
	case s.now() >= terms.until: // it has expired, so Postgres need not be asked
		h.terms.Store(nil)
		unspent := terms.unspent.Swap(0)
		s.Stats.UnspentTokens.Add(unspent)
		if unspent > 0 {
			return context.DeadlineExceeded
		}
		return nil
	}
	return s.renew(h, want{})
}

// Pause lets no lease of the bucket, or of any if it is the zero Bucket, be taken until resume. One
// that is being fetched is for Drop to wait for.
func (s *Leases) Pause(bucket rate.Bucket) (resume func()) {
	if s == nil {
		return func() {}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paused[bucket]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.paused[bucket]--; s.paused[bucket] == 0 {
			delete(s.paused, bucket)
		}
	}
}
