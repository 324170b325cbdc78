package lease

import (
	"context"
	"time"

	"github.com/pglimit/ratelimit/pglimit/internal/skew"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// renew settles the holder's lease, if it has one, and takes the next one, of at least that
// many tokens; if tokens is zero, none. Nothing can be spent when it returns: unspent tokens
// belong to the bucket again, and the new ones are for the claims of the fetch.
func (s *Leases) renew(h *holder, tokens int64) error {
	unspent, old := h.unspent.Swap(0)+h.withheld, h.terms.Load()
	h.withheld = 0
	request := rate.LeaseRequest{
		Limiter: s.config.Limiter, Key: h.key, Limit: s.config.Limit, Durability: s.config.Durability,
		Share: leaseShare, TTL: s.config.TTL,
	}
	asked := s.now()
	if old != nil {
		request.Settle, request.Spent = old.Lease, old.Tokens-unspent
	}
	if tokens > 0 {
		request.Tokens = max(tokens, s.chunk(old, request.Spent, asked))
	}
	ctx, cancel := context.WithTimeout(s.ctx, s.config.TTL)
	defer cancel()
	lease, err := s.call(ctx, request)
	s.Stats.UnspentTokens.Add(unspent)
	s.Stats.LeasedTokens.Add(lease.Tokens)
	if unspent > 0 {
		s.calls.Forget(h.key) // denials made while these tokens were set aside
	}

	lasts := lease.Until.Sub(lease.At)
	next := &terms{Lease: lease, asked: asked, got: s.now(), until: asked + skew.AtLeast(lasts)}
	late := next.got >= next.until
	if late {
		s.Stats.UnspentTokens.Add(lease.Tokens)
	}
	if tokens > 0 && (err != nil || late || lease.Tokens < max(tokens, busy)) {
		h.mu.Lock()
		h.pause = next.got + s.hold() // Postgres is down or slow, or the bucket has too few tokens
		h.mu.Unlock()
	}
	if err != nil || late || lease.Tokens == 0 {
		next = nil
	}
	h.terms.Store(next)
	return err
}

// call the strategy, when there is room for one more call.
func (s *Leases) call(ctx context.Context, request rate.LeaseRequest) (rate.Lease, error) {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return rate.Lease{}, ctx.Err()
	}
	s.Stats.Trips.Add(1)
	return s.calls.Lease(ctx, request)
}

// chunk is how many tokens a hold needs, judged by how fast the last lease was spent.
func (s *Leases) chunk(old *terms, spent int64, now time.Duration) int64 {
	if old == nil {
		return busy
	}
	perHold := float64(spent) * float64(s.hold()) / float64(max(now-old.got, s.hold()/10))
	return max(busy, int64(min(perHold, float64(old.Tokens)*growth)))
}
