package serve

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"
)

// generations are what a [Server] answers with: one Server after another.
type generations struct {
	mu    sync.Mutex
	now   *Server          // answers new requests
	alive map[*Server]bool // not closed yet: requests may still be under way there
}

// Reload answers new requests by other limits and tokens. Requests under way are answered by the limits
// that they met; then those limiters are closed, which gives their leases back. If the error is not nil,
// nothing has changed.
func (s *Server) Reload(limits []Limit, tokens []string) error {
	config := s.config
	config.Limits, config.Tokens = limits, tokens
	next, err := New(config)
	if err != nil {
		return err
	}
	next.loopback = s.loopback
	s.generations.mu.Lock()
	defer s.generations.mu.Unlock()
	if s.stopping.Load() {
		return errors.New("this server is stopping")
	}
	before := s.generations.now
	s.generations.now, s.generations.alive[next] = next, true
	go func() {
		before.users.Wait() // nobody comes any more
		ctx, cancel := context.WithTimeout(context.Background(), cutTimeout)
		defer cancel()
		if err := before.closeLimiters(ctx); err != nil {
			s.logger.Warn("pglimit serve: limits that were replaced did not end well", "error", err)
		}
		s.generations.mu.Lock()
		defer s.generations.mu.Unlock()
		delete(s.generations.alive, before)
	}()
	return nil
}

// ServeHTTP answers a request by the limits of this moment.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.generations.mu.Lock()
	now := s.generations.now
	now.users.Add(1)
	s.generations.mu.Unlock()
	defer now.users.Done()
	if s.stopping.Load() {
		// Clients connect anew for their next request, which leads them elsewhere. (SetKeepAlivesEnabled would
		// cut connections on which one is on its way.)
		w.Header().Set("Connection", "close")
		now.stopping.Store(true)
	}
	if now != s { // http.Server knows the first limits only
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(now.writeTimeout()))
	}
	now.handler.ServeHTTP(w, r)
}

// Close closes the limiters, which gives their leases back. Requests that wait for tokens are
// answered 503. Close the pool after it.
func (s *Server) Close(ctx context.Context) error {
	s.generations.mu.Lock()
	var alive []*Server
	for server := range s.generations.alive {
		alive = append(alive, server)
	}
	s.generations.mu.Unlock()
	errs := make([]error, len(alive))
	var closing sync.WaitGroup
	for i, server := range alive {
		closing.Go(func() { errs[i] = server.closeLimiters(ctx) })
	}
	closing.Wait()
	return errors.Join(errs...)
}
