package lease

import (
	"context"
	"errors"
	"time"

	"github.com/pglimit/ratelimit/pglimit/internal/wait"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// fetch is a call that settles a lease and takes the next one.
type fetch struct {
	done   chan struct{}
	claims []*wait.Waiter // callers that wait for the new lease, in order of arrival; guarded by the holder's lock
	err    error          // set before done is closed
}

// want is what the next lease must have at least, and its limit. The zero want: no next lease.
type want struct {
	tokens int64
	limit  rate.Limit
}

// errNotServed: the lease could not serve the request, so the caller has to ask Postgres.
var errNotServed = errors.New("lease: not served")

// Fetch fetches a lease for a request that found none, if its bucket is busy. A caller that is
// not served has to ask Postgres.
func (s *Leases) Fetch(ctx context.Context, request *rate.Request) (decision rate.Decision, served bool, err error) {
	if s == nil || request.Limit.Calendar != "" { // nothing of a window can be leased
		return rate.Decision{}, false, nil
	}
	h, _ := s.known.ComputeIfAbsent(request.Bucket(), func() (*holder, bool) { return &holder{bucket: request.Bucket()}, false })
	decision, served, claim := s.join(h, request)
	if claim == nil {
		return decision, served, nil
	}
	decision, err = claim.Await(ctx, claim.Leave)
	if errors.Is(err, errNotServed) {
		return rate.Decision{}, false, nil
	}
	return decision, err == nil, err
}

// join joins the fetch under way, or begins one if the bucket is busy. If claim is nil, there is
// none to wait for, but the request may have been served.
func (s *Leases) join(h *holder, request *rate.Request) (decision rate.Decision, served bool, claim *wait.Waiter) {
	now := s.now()
	h.mu.Lock()
	defer h.mu.Unlock()
	f := h.fetching
	if f == nil {
		// A fetch may have ended since the caller looked.
		if !s.tooDurable(request) {
			if decision, served = h.spend(request, s.now); served {
				return decision, true, nil
			}
		}
		if f = s.fetchFor(h, request, now); f == nil {
			return rate.Decision{}, false, nil
		}
	}
	claim = new(wait.Waiter)
	claim.Begin(*request)
	f.claims = append(f.claims, claim)
	return rate.Decision{}, false, claim
}

// fetchFor begins the fetch, if any, for a request that the lease cannot serve. The holder is
// locked.
func (s *Leases) fetchFor(h *holder, request *rate.Request, now time.Duration) *fetch {
	// A request that has to ask Postgres must not be denied the tokens that this very process
	// has leased: the lease is settled first.
	// Nor is it a reason for a lease that a caller would wait for tokens: there are none to set aside.
	terms := h.terms.Load()
	unspent := terms != nil && terms.unspent.Load() > 0
	unfit := request.Tokens > request.Limit.Burst/leaseShare || s.tooDurable(request) || request.Ahead > 0 || unspent && terms.limit != request.Limit
	if unfit || now < h.pause {
		if unfit || unspent {
			h.pause = now + s.hold()
		}
		if !unspent {
			return nil
		}
		return s.fetch(h, want{})
	}
	if now-h.from >= s.hold() {
		h.from, h.requests = now, 0
	}
	h.requests++
	if terms == nil && h.requests < busy {
		return nil
	}
	return s.fetch(h, want{request.Tokens, request.Limit})
}

// fetch begins to settle the lease and to take the next one, if one is wanted and leases of the
// bucket are not paused. It returns nil after Close, and if there is nothing to do. The holder is locked.
func (s *Leases) fetch(h *holder, next want) *fetch {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.paused[h.bucket] > 0 || s.paused[rate.Bucket{}] > 0 {
		next = want{}
	}
	if s.closed || next.tokens == 0 && h.terms.Load() == nil {
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
		f.err = s.renew(h, next)
		if !s.serve(h, f) {
			f.err = s.renew(h, want{})
			h.mu.Lock()
			h.end(f)
			h.mu.Unlock()
		}
		close(f.done)
	})
	return f
}

// serve serves the claims out of the new lease, in order of arrival. The lease stays, and the
// fetch is over, unless it has tokens left that cannot serve the next claim: that caller has to
// ask Postgres, after the lease is settled.
func (s *Leases) serve(h *holder, f *fetch) (stays bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	terms := h.terms.Load()
	if terms == nil {
		h.end(f)
		return true
	}
	left := terms.Tokens
	for len(f.claims) > 0 {
		claim := f.claims[0]
		rest := left - claim.Request.Tokens
		unserved := rest < 0 || s.tooDurable(&claim.Request) || terms.limit != claim.Request.Limit
		if unserved && !claim.Left() {
			break
		}
		if !unserved && claim.Answer(terms.decision(&claim.Request, rest, terms.got), nil) {
			left = rest
		}
		f.claims = f.claims[1:]
	}
	if len(f.claims) == 0 || left == 0 {
		terms.unspent.Store(left)
		h.end(f)
		return true
	}
	h.withheld, h.pause = left, s.now()+s.hold()
	return false
}

// end ends the fetch. Callers that are not served ask Postgres, and get any error there. The holder is locked.
func (h *holder) end(f *fetch) {
	for _, claim := range f.claims {
		claim.Answer(rate.Decision{}, errNotServed)
	}
	h.fetching = nil
}
