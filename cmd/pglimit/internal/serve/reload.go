package serve

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"
)

// generations are the Servers that a [Server] has had, one per configuration.
type generations struct {
	mu    sync.Mutex
	now   *Server          // answers new requests
	alive map[*Server]bool // not closed yet: requests may still be under way there
}

// Reload answers new requests with other limits and tokens. Running requests keep their limits; then those limiters are
// closed, which returns their leases. After an error nothing has changed.
func (s *Server) Reload(limits []Limit, tokens []Token) error {
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

// ServeHTTP answers a request with the current limits.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.generations.mu.Lock()
	now := s.generations.now
	now.users.Add(1)
	s.generations.mu.Unlock()
	defer now.users.Done()
	if s.stopping.Load() {
		// Clients open a new connection for their next request, which leads them to another instance.
		// (SetKeepAlivesEnabled would cut connections on which a request is on its way.)
		w.Header().Set("Connection", "close")
		now.stopping.Store(true)
	}
	if now != s { // http.Server knows the first limits only
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(now.writeTimeout()))
	}
	now.handler.ServeHTTP(w, r)
}

// Close closes the limiters, which returns their leases. Requests that wait for tokens get 503. Close the pool after
// it.
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
