package lease

import (
	"context"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// fetch is a call that settles a lease and takes the next one.
type fetch struct {
	done   chan struct{}
	claims []*claim // those who wait for it, in order of arrival; with the holder's lock
	err    error    // when it is done
}

// claim of a caller to tokens of the lease that is being fetched.
type claim struct {
	request  rate.Request
	decision rate.Decision
	served   bool // before the fetch is done; with the holder's lock
	gone     bool // the caller; with the holder's lock
}

// Fetch a lease for a request that found none, if its key is busy. Who is not served out
// of it asks Postgres. Who has the answer calls release in any case: Close waits for that.
func (s *Leases) Fetch(ctx context.Context, request *rate.Request) (decision rate.Decision, served bool, release func(), err error) {
	release = func() {}
	if s == nil {
		return rate.Decision{}, false, release, nil
	}
	h, _ := s.keys.ComputeIfAbsent(request.Key, func() (*holder, bool) { return &holder{key: request.Key}, false })
	claim := &claim{request: *request}
	f, err := s.join(h, claim)
	if err != nil {
		return rate.Decision{}, false, release, err
	}
	if f != nil {
		release = s.release
		if err := s.await(ctx, h, f, claim); err != nil {
			return rate.Decision{}, false, release, err
		}
	}
	return claim.decision, claim.served, release, nil
}

// await the end of the fetch. The error is that of ctx.
func (s *Leases) await(ctx context.Context, h *holder, f *fetch, claim *claim) error {
	defer s.waiting.Leave()
	select {
	case <-f.done:
		return nil
	case <-ctx.Done():
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if claim.served {
		return nil
	}
	claim.gone = true
	return ctx.Err()
}

// join the fetch that is under way, or begin one if the key is busy. Nil: there is none to
// wait for, and the claim is served perhaps. The error is ErrOverloaded.
func (s *Leases) join(h *holder, claim *claim) (*fetch, error) {
	now := s.now()
	h.mu.Lock()
	defer h.mu.Unlock()
	f := h.fetching
	if f == nil {
		// A fetch may have ended since the caller looked.
		if claim.decision, claim.served = h.spend(&claim.request, s.now); claim.served {
			return nil, nil
		}
		if f = s.fetchFor(h, claim.request.Tokens, now); f == nil {
			return nil, nil
		}
	}
	if err := s.waiting.Enter(); err != nil {
		s.waiting.Leave()
		return nil, err
	}
	if !s.admit() {
		s.waiting.Leave()
		return nil, nil
	}
	f.claims = append(f.claims, claim)
	return f, nil
}

// admit a caller who is to have its answer before close returns. Not after close.
func (s *Leases) admit() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.joined++
	return true
}

// release a caller who was admitted.
func (s *Leases) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.joined--; s.joined == 0 && s.closed {
		close(s.drained)
	}
}

// fetchFor begins the fetch that a request for so many tokens needs, which are not in the
// lease. Nil: none. The holder is locked.
func (s *Leases) fetchFor(h *holder, tokens int64, now time.Duration) *fetch {
	// Who has to ask Postgres must not be denied there what is set aside for this very process.
	large := tokens > s.config.Limit.Burst/leaseShare
	if large || now < h.pause {
		unspent := h.unspent.Load() > 0
		if large || unspent {
			h.pause = now + s.hold()
		}
		if !unspent {
			return nil
		}
		return s.fetch(h, 0)
	}
	if now-h.from >= s.hold() {
		h.from, h.requests = now, 0
	}
	h.requests++
	if h.terms.Load() == nil && h.requests < busy {
		return nil
	}
	return s.fetch(h, tokens)
}

// fetch begins to settle the lease and to take the next one, which is to have at least so
// many tokens; if zero, only to settle. It returns nil after close, and while leases are
// paused, unless to settle. The holder is locked.
func (s *Leases) fetch(h *holder, tokens int64) *fetch {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.paused > 0 && tokens > 0 {
		return nil
	}
	s.active[h] = struct{}{}
	if !s.keeping {
		s.keeping = true
		s.running.Go(s.keep)
	}
	f := &fetch{done: make(chan struct{})}
	h.fetching = f
	s.running.Go(func() {
		// Who is not served asks Postgres, and hears of an error there.
		f.err = s.renew(h, tokens)
		if !s.serve(h, f) {
			f.err = s.renew(h, 0)
			h.mu.Lock()
			h.fetching = nil
			h.mu.Unlock()
		}
		close(f.done)
	})
	return f
}

// serve the claims out of the new lease, in order of arrival. The lease stays, and the fetch
// is over, unless somebody has to ask Postgres who wants more than is left of it.
func (s *Leases) serve(h *holder, f *fetch) (stays bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	terms := h.terms.Load()
	if terms == nil {
		h.fetching = nil
		return true
	}
	left, stays := terms.Tokens, true
	for _, c := range f.claims {
		if c.gone {
			continue
		}
		if stays = c.request.Tokens <= left; !stays {
			break
		}
		left -= c.request.Tokens
		c.decision, c.served = terms.decision(&c.request, left, terms.got), true
	}
	if stays || left == 0 {
		h.unspent.Store(left)
		h.fetching = nil
		return true
	}
	h.withheld, h.pause = left, s.now()+s.hold()
	return false
}
