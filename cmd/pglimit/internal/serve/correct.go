package serve

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/pglimit/ratelimit/pglimit"
)

// reset answers /v1/reset.
func (s *Server) reset(w http.ResponseWriter, r *http.Request, t *Token, _ int) *problem {
	var body bucket
	if p := read(w, r, &body); p != nil {
		return p
	}
	l, p := s.limiter(r.Context(), t, body.Limiter)
	if p != nil {
		return p
	}
	if l.ruled { // a Limiter resets buckets of its own name, and those that remember them here hear of it
		c := l.config
		c.Name, c.Memory.Keys = body.Limiter, 1
		named, err := pglimit.New(s.config.Pool, l.Strategy(), c)
		if err != nil {
			return problemOf(err)
		}
		defer named.Close(r.Context()) //nolint:errcheck // it has nothing to give back
		l.Limiter = named
	}
	if err := l.Reset(r.Context(), body.Key); err != nil {
		return problemOf(err)
	}
	writeJSON(w, http.StatusOK, "application/json", resetDone{body.Limiter, body.Key, true})
	return nil
}

// refund answers /v1/refund: tokens of a decision were not used.
func (s *Server) refund(w http.ResponseWriter, r *http.Request, t *Token, _ int) *problem {
	l, d, tokens, p := s.correction(w, r, t)
	if p != nil {
		return p
	}
	if err := l.Refund(r.Context(), d, tokens); err != nil {
		return problemOf(err)
	}
	writeJSON(w, http.StatusOK, "application/json", refunded{d.Limiter, d.Key, tokens})
	return nil
}

// settle answers /v1/settle: what was granted was an estimate.
func (s *Server) settle(w http.ResponseWriter, r *http.Request, t *Token, _ int) *problem {
	l, d, tokens, p := s.correction(w, r, t)
	if p != nil {
		return p
	}
	if l.blocks() && tokens > d.Granted {
		return invalid("tokens", fmt.Sprintf("is %d: limiter %s blocks keys, and charges no more than the %d that "+
			"were granted: ask for the most that a request may cost, and settle for less",
			tokens, d.Limiter, d.Granted))
	}
	charged, err := l.Settle(r.Context(), d, tokens)
	if err != nil && !errors.Is(err, pglimit.ErrNotCharged) { // the answer says how much was charged
		return problemOf(err)
	}
	writeJSON(w, http.StatusOK, "application/json", settled{d.Limiter, d.Key, charged.Granted})
	return nil
}

// correction reads a decision that was answered before, and a number of tokens.
func (s *Server) correction(w http.ResponseWriter, r *http.Request, t *Token) (
	l limiter, d pglimit.Decision, tokens int64, p *problem,
) {
	var body correction
	if p = read(w, r, &body); p != nil {
		return l, d, 0, p
	}
	answered := body.Decision
	switch {
	case answered == nil:
		return l, d, 0, invalid("decision", "is missing: send the decision as it was answered")
	case body.Tokens == nil:
		return l, d, 0, invalid("tokens", fmt.Sprintf("is missing: say how many, of the %d that were granted",
			answered.Granted))
	}
	if l, p = s.limiter(r.Context(), t, answered.Limiter); p != nil {
		return l, d, 0, p.in("decision")
	}
	d, p = answered.granted()
	return l, d, *body.Tokens, p
}
