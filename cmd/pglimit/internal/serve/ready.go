package serve

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// readyTimeout is shorter than the usual timeout of a probe, a second.
const readyTimeout = 800 * time.Millisecond

// readyFor is how long a result is reused for other probes.
const readyFor = 250 * time.Millisecond

// readyz says whether this server can decide. During an outage it is ready if all its limiters have an answer of their
// own (on_error): otherwise a load balancer would remove all instances.
func (s *Server) readyz(w http.ResponseWriter, r *http.Request) {
	if s.stopping.Load() {
		newProblem(http.StatusServiceUnavailable, "this server is stopping").write(w)
		return
	}
	answer := map[string]string{"status": "ready"}
	if err := s.ready(r.Context()); err != nil {
		cause := pglimit.CauseOf(err)
		if needsRepair(cause) || !s.hasFallbacks() {
			p := newProblem(http.StatusServiceUnavailable, "not ready: %s", failureText(err))
			p.Cause = cause.String()
			p.write(w)
			return
		}
		answer["degraded"] = failureText(err)
	}
	writeJSON(w, http.StatusOK, "application/json", answer)
}

// ready is check, shared by all concurrent probes: anybody may probe, and together they take one connection from the
// decisions.
func (s *Server) ready(ctx context.Context) error {
	_, err, _ := s.probes.Do("", func() (any, error) {
		if time.Since(s.checked) > readyFor {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readyTimeout) // others wait for it too
			defer cancel()
			s.unready = s.check(ctx)
			s.checked = time.Now()
		}
		return nil, s.unready
	})
	return err
}

// check asks each strategy, without any stage, whether it could grant now: connection, schema, rights, and a server
// that can write. If a strategy cannot say, check peeks at a bucket.
func (s *Server) check(ctx context.Context) error {
	asked := make(map[string]bool)
	for name, l := range s.all() {
		if asked[l.Strategy().Name()] {
			continue
		}
		asked[l.Strategy().Name()] = true
		if err := s.couldGrant(ctx, name, l.Limiter); err != nil {
			return fmt.Errorf("%s: %w", l.Strategy().Name(), errors.Join(err, ctx.Err()))
		}
	}
	if s.rules != nil {
		return s.rules.Await(ctx)
	}
	return nil
}

func (s *Server) couldGrant(ctx context.Context, name string, l *pglimit.Limiter) error {
	peek := rate.Request{Limiter: name, Key: "readyz", Limit: l.Limit(), Unit: 1}
	if _, err := l.Strategy().Take(ctx, s.session, []rate.Request{peek}); err != nil {
		return err
	}
	strategy, able := l.Strategy().(interface {
		Ready(context.Context, pglimit.Session) error
	})
	if !able {
		return nil
	}
	return strategy.Ready(ctx, s.session)
}

// hasFallbacks says whether all limiters have an answer of their own. Those that only the table has have none.
func (s *Server) hasFallbacks() bool {
	names := slices.Collect(maps.Keys(s.limiters))
	if s.rules != nil {
		names = append(names, s.rules.Limiters()...)
	}
	without := func(name string) bool { return s.limiters[name].config.OnError == nil }
	return len(names) > 0 && !slices.ContainsFunc(names, without)
}
