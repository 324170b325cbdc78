package lease

import (
	"context"
	"time"

	"github.com/pglimit/ratelimit/internal/bucket"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// renew settles the holder's lease, if it has one, and takes the next one, if one is wanted.
// Nothing can be spent when it returns: unspent tokens belong to the bucket again, and the new
// ones are for the claims of the fetch.
func (s *Leases) renew(h *holder, next want) error {
	request := rate.LeaseRequest{
		Limiter: h.bucket.Limiter, Key: h.bucket.Key, Durability: s.config.Durability,
		Share: leaseShare, TTL: s.config.TTL,
	}
	asked, unspent := s.now(), int64(0)
	old := h.terms.Load()
	if old != nil {
		unspent = old.unspent.Swap(0) + h.withheld
		h.withheld = 0
		request.Settle, request.Spent, request.Limit = old.Lease, old.Tokens-unspent, old.limit
	}
	if next.tokens > 0 {
		request.Tokens, request.Limit = max(next.tokens, s.chunk(old, request.Spent, asked)), next.limit
	}
	ctx, cancel := context.WithTimeout(s.ctx, s.config.TTL)
	defer cancel()
	lease, err := s.call(ctx, request)
	s.Stats.UnspentTokens.Add(unspent)
	s.Stats.LeasedTokens.Add(lease.Tokens)
	s.calls.Forget(h.bucket) // the bucket has more tokens by those unspent, and fewer by the new ones

	lasts := lease.Until.Sub(lease.At)
	got := &terms{Lease: lease, limit: request.Limit, rule: s.calls.Rule, asked: asked, got: s.now(), until: asked + bucket.AtLeast(lasts)}
	late := got.got >= got.until
	if late {
		s.Stats.UnspentTokens.Add(lease.Tokens)
	}
	if next.tokens > 0 && (err != nil || late || lease.Tokens < max(next.tokens, busy)) {
		h.mu.Lock()
		h.pause = got.got + s.hold() // Postgres is down or slow, or the bucket has too few tokens
		h.mu.Unlock()
	}
	if err != nil || late || lease.Tokens == 0 {
		got = nil
	}
	h.terms.Store(got)
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
