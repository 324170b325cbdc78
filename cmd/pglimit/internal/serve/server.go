// Package serve decides over HTTP, for programs in any language: the server of "pglimit serve".
// docs/serve.md says what it answers.
package serve

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/singleflight"

	"github.com/pglimit/ratelimit/adapters/promlimit"
	"github.com/pglimit/ratelimit/internal/session"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Config of a [Server].
type Config struct {
	Limits   []Limit              // at least one, each name once
	Pool     pglimit.Pool         // stays the caller's
	Database prometheus.Collector // the metrics of the database; nil: none
	Tokens   []string             // one of them is needed below /v1; none: anybody may ask
	Logger   *slog.Logger
}

// Server answers requests. Make one with [New], and [Server.Run] it.
type Server struct {
	config      Config
	limiters    map[string]limiter
	names       string // of the limiters, for errors
	session     rate.Session
	tokens      [][sha256.Size]byte
	logger      *slog.Logger
	handler     http.Handler
	stopping    atomic.Bool
	loopback    bool // listens on an address of this machine only
	generations generations
	users       sync.WaitGroup // requests that this Server answers

	probes  singleflight.Group
	checked time.Time // by the last of the probes
	unready error     // what that found
}

// limiter with what it was made of.
type limiter struct {
	*pglimit.Limiter
	config pglimit.Config
}

func (l limiter) blocks() bool { return l.config.Block != pglimit.Block{} }

// New makes the limiters and what answers for them. It asks nothing of Postgres.
func New(config Config) (*Server, error) {
	s := &Server{config: config, limiters: make(map[string]limiter), session: session.OnPool(config.Pool), logger: config.Logger}
	trips := promlimit.NewRoundTrips()
	var all []*pglimit.Limiter
	for _, limit := range config.Limits {
		c := limit.Config
		c.Logger, c.OnRoundTrip = config.Logger, trips.Observe
		made, err := pglimit.New(config.Pool, limit.Strategy, c)
		if err != nil {
			return nil, err
		}
		if _, twice := s.limiters[c.Name]; twice {
			return nil, fmt.Errorf("there are two limiters with the name %q: name each once", c.Name)
		}
		s.limiters[c.Name] = limiter{made, c}
		all = append(all, made)
	}
	s.names = strings.Join(slices.Sorted(maps.Keys(s.limiters)), ", ")
	for _, token := range config.Tokens {
		s.tokens = append(s.tokens, sha256.Sum256([]byte(token)))
	}
	requests := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "http_request_duration_seconds", // as most services call theirs, and the dashboard
		Help:    "HTTP requests, from the header to the answer, with the time that a request waited for its tokens.",
		Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
	}, []string{"handler", "code"})
	registry := prometheus.NewRegistry()
	if config.Database != nil {
		registry.MustRegister(config.Database)
	}
	for _, collector := range []prometheus.Collector{
		promlimit.New(all...), trips, requests, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	} {
		if err := registry.Register(collector); err != nil {
			return nil, err
		}
	}
	s.handler = s.routes(requests, promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	s.generations.now, s.generations.alive = s, map[*Server]bool{s: true}
	return s, nil
}

func (s *Server) routes(requests *prometheus.HistogramVec, metrics http.Handler) http.Handler {
	mux := http.NewServeMux()
	for path, answer := range map[string]func(http.ResponseWriter, *http.Request) *problem{
		"/v1/allow":  s.allow,
		"/v1/peek":   s.peek,
		"/v1/reset":  s.reset,
		"/v1/refund": s.refund,
		"/v1/settle": s.settle,
	} {
		mux.Handle(path, promhttp.InstrumentHandlerDuration(requests.MustCurryWith(prometheus.Labels{"handler": path}), s.post(answer)))
	}
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, "application/json", map[string]string{"status": "ok"})
	})
	mux.HandleFunc("/readyz", s.readyz)
	mux.Handle("/metrics", metrics)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		newProblem(http.StatusNotFound, "there is no path %q: POST /v1/allow, /v1/peek, /v1/reset, /v1/refund, /v1/settle; GET /healthz, /readyz, /metrics", r.URL.Path).write(w)
	})
	return mux
}

// post is the way of every request below /v1.
func (s *Server) post(answer func(http.ResponseWriter, *http.Request) *problem) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		p := s.authorized(w, r)
		if p == nil && r.Method != http.MethodPost {
			w.Header().Set("Allow", http.MethodPost)
			p = newProblem(http.StatusMethodNotAllowed, "the method is %s: %s takes POST", r.Method, r.URL.Path)
		}
		if p == nil {
			p = checkQuery(r)
		}
		if p == nil {
			p = answer(w, r)
		}
		if p != nil { // also if the client seems to have left: one that has closed its own half still reads
			p.write(w)
		}
	}
}

// authorized compares hashes, so that the time it takes tells nothing about the tokens.
func (s *Server) authorized(w http.ResponseWriter, r *http.Request) *problem {
	if len(s.tokens) == 0 {
		return s.local(r)
	}
	kind, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	sent, known := sha256.Sum256([]byte(token)), 0
	for i := range s.tokens {
		known |= subtle.ConstantTimeCompare(sent[:], s.tokens[i][:])
	}
	if known == 1 && strings.EqualFold(kind, "Bearer") {
		return nil
	}
	w.Header().Set("WWW-Authenticate", "Bearer")
	return newProblem(http.StatusUnauthorized, "the header Authorization: Bearer TOKEN is missing or wrong: TOKEN is a line of the server's --token-file")
}

// local refuses a web page whose name leads to this machine (DNS rebinding): to the browser, its
// requests stay within that page's site. No such name is a number or localhost.
func (s *Server) local(r *http.Request) *problem {
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	if !s.loopback || err == nil || strings.EqualFold(host, "localhost") {
		return nil
	}
	return newProblem(http.StatusForbidden, "the header Host is %q: without --token-file, a server that listens on this machine only takes an IP address or localhost there", r.Host)
}

// limiter of that name.
func (s *Server) limiter(name string) (limiter, *problem) {
	if name == "" {
		return limiter{}, invalid("limiter", "is missing: it must be one of "+s.names)
	}
	found, ok := s.limiters[name]
	if !ok {
		p := newProblem(http.StatusNotFound, "limiter is %q: it must be one of %s", name, s.names)
		p.Field = "limiter"
		return limiter{}, p
	}
	return found, nil
}

func (s *Server) closeLimiters(ctx context.Context) error {
	errs := make([]error, len(s.limiters))
	var closing sync.WaitGroup
	for i, name := range slices.Sorted(maps.Keys(s.limiters)) {
		closing.Go(func() {
			if err := s.limiters[name].Close(ctx); err != nil {
				errs[i] = fmt.Errorf("limiter %s did not end well: %w", name, err)
			}
		})
	}
	closing.Wait()
	return errors.Join(errs...)
}
