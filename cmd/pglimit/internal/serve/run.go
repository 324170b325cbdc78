package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// Stop says how a server ends.
type Stop struct {
	// Drain is how long it continues as before, except for /readyz, so that a load balancer sends its requests
	// elsewhere.
	Drain time.Duration

	// Grace is how long running requests may take after that.
	Grace time.Duration
}

// Times that a client may take.
const (
	headerTimeout = 5 * time.Second
	bodyTimeout   = 10 * time.Second
	idleTimeout   = 2 * time.Minute // longer than the 60 s of the usual proxies, which else meet a closed connection
	answerTimeout = 10 * time.Second

	// cutTimeout is for the answers of requests that are cut short.
	cutTimeout = 2 * time.Second
)

// Run answers on the listener until ctx ends. Then it stops in order: readiness fails, running requests are answered,
// the limiters are closed. The error says what was cut short.
func (s *Server) Run(ctx context.Context, listener net.Listener, stop Stop) error {
	if address, ok := listener.Addr().(*net.TCPAddr); ok {
		s.loopback = address.IP.IsLoopback()
	}
	server := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: headerTimeout, ReadTimeout: bodyTimeout, IdleTimeout: idleTimeout,
		WriteTimeout:   s.writeTimeout(),
		MaxHeaderBytes: 64 << 10,
		ErrorLog:       slog.NewLogLogger(s.logger.Handler(), slog.LevelWarn),
	}
	broken := make(chan error, 1)
	go func() { broken <- server.Serve(listener) }()
	s.logger.Info("pglimit serve started", "listen", listener.Addr().String(), "limiters", len(s.limiters))
	s.sayIfNotReady(ctx)

	var failed error
	select {
	case <-ctx.Done():
	case failed = <-broken:
	}
	s.stopping.Store(true)
	ctx = context.WithoutCancel(ctx)
	if failed == nil {
		failed = s.drain(ctx, server, broken, stop)
	}
	ctx, cancel := context.WithTimeout(ctx, cutTimeout)
	defer cancel()
	failed = errors.Join(failed, s.Close(ctx))
	s.logger.Info("pglimit serve stopped")
	return failed
}

// writeTimeout is longer than any request takes. Before a wait, a limiter's timeout may pass twice: see
// [pglimit.Limiter.WaitN].
func (s *Server) writeTimeout() time.Duration {
	longest := tableTimeout
	for _, l := range s.limiters {
		longest = max(longest, l.config.Timeout)
	}
	return bodyTimeout + 2*longest + maxWait + answerTimeout
}

// drain ends the server when all requests are answered, or the time is over.
func (s *Server) drain(ctx context.Context, server *http.Server, broken <-chan error, stop Stop) error {
	s.logger.Info("pglimit serve stops", "drain_ms", stop.Drain.Milliseconds(), "grace_ms", stop.Grace.Milliseconds())
	select {
	case <-time.After(stop.Drain):
	case err := <-broken:
		return err
	}
	within := func(limit time.Duration) error {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		return server.Shutdown(ctx)
	}
	if within(stop.Grace) == nil {
		return nil
	}
	// Requests that wait for tokens are answered now.
	closing, cancel := context.WithTimeout(ctx, cutTimeout)
	defer cancel()
	_ = s.Close(closing) // Run closes again, and says what is wrong
	if within(cutTimeout) == nil {
		return nil
	}
	return errors.Join(fmt.Errorf("not all requests were answered within --grace %v", stop.Grace), server.Close())
}

// sayIfNotReady logs what a new user would wonder about.
func (s *Server) sayIfNotReady(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := s.check(ctx); err != nil && !errors.Is(ctx.Err(), context.Canceled) {
		s.logger.Warn("pglimit serve is not ready yet, and goes on trying", "error", bare(err))
	}
}

const startTimeout = 5 * time.Second
