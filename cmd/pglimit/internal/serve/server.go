// Package serve decides over HTTP, for programs in any language: the server of "pglimit serve".
// docs/serve.md says what it answers.
package serve

import (
	"cmp"
	"context"
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

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/singleflight"

	"github.com/pglimit/ratelimit/adapters/promlimit"
	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
)

// Config of a [Server].
type Config struct {
	Limits   []Limit              // each name once
	Rules    *pglimit.Limits      // the table pglimit.limits, whose limiters are served too
	Strategy pglimit.Strategy     // of limiters that are in the table only; nil: token_bucket
	Pool     pglimit.Pool         // stays the caller's
	Database prometheus.Collector // the metrics of the database; nil: none
	Tokens   []Token              // one of them is needed below /v1; none: anybody may ask
	Gateway  Gateway              // whose header fields /v1/gateway reads; zero: there is no such path
	Top      *pglimit.Top         // for /v1/top; nil: nothing is counted, and there is no such path
	Admin    *pgxpool.Pool        // for the page /admin/; nil: there is none
	Logger   *slog.Logger
}

// Server answers requests. Make one with [New], and [Server.Run] it.
type Server struct {
	config      Config
	limiters    map[string]limiter // of the configuration
	rules       *pglimit.Limits
	registry    *prometheus.Registry
	session     rate.Session
	logger      *slog.Logger
	handler     http.Handler
	stopping    atomic.Bool
	loopback    bool // listens on an address of this machine only
	generations generations
	complained  atomic.Int64 // the second in which a gateway's mistake was logged

	// table decides for all names that only the table of limits has: thousands of them cost no more than one, and are
	// one series of each metric. It has no Limiter if there are no rules.
	table limiter
	users sync.WaitGroup // requests that this Server answers

	probes  singleflight.Group
	checked time.Time // by the last of the probes
	unready error     // what that found
}

// limiter with what it was made of.
type limiter struct {
	*pglimit.Limiter
	config pglimit.Config
	ruled  bool // its names and limits are in the table only
}

func (l limiter) blocks() bool { return l.config.Block != pglimit.Block{} }

// New makes the limiters and the handlers. It does not call Postgres.
func New(config Config) (*Server, error) {
	s := &Server{
		config: config, limiters: make(map[string]limiter), rules: config.Rules,
		session: postgres.OnPool(config.Pool), logger: config.Logger, registry: prometheus.NewRegistry(),
	}
	for _, limit := range config.Limits { // before one is made, which begins to read the table of limits
		if limit.Config.Name == tableName {
			return nil, fmt.Errorf("a limiter has the name %s, which is that of all in the table", tableName)
		}
	}
	var all []*pglimit.Limiter
	for _, limit := range config.Limits {
		made, err := s.makeLimiter(limit)
		if err != nil {
			return nil, err
		}
		s.limiters[limit.Config.Name] = made
		all = append(all, made.Limiter)
	}
	if config.Rules != nil {
		made, err := s.makeLimiter(Limit{
			Strategy: cmp.Or(config.Strategy, pglimit.Strategy(strategies.TokenBucket{})),
			Config:   pglimit.Config{Name: tableName, Limit: unlimited, Timeout: tableTimeout},
		})
		if err != nil {
			return nil, err
		}
		made.ruled = true
		s.table = made
		all = append(all, made.Limiter)
	}
	requests := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "http_request_duration_seconds", // as most services call theirs, and the dashboard
		Help:    "HTTP requests, from the header to the answer, with the time that a request waited for its tokens.",
		Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
	}, []string{"handler", "code"})
	if config.Database != nil {
		s.registry.MustRegister(config.Database)
	}
	for _, collector := range []prometheus.Collector{
		promlimit.New(all...), requests,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	} {
		if err := s.registry.Register(collector); err != nil {
			return nil, err
		}
	}
	s.handler = s.routes(requests, promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{}))
	s.generations.now, s.generations.alive = s, map[*Server]bool{s: true}
	return s, nil
}

func (s *Server) routes(requests *prometheus.HistogramVec, metrics http.Handler) http.Handler {
	mux := http.NewServeMux()
	timed := func(path string, h http.Handler) {
		times := requests.MustCurryWith(prometheus.Labels{"handler": path})
		mux.Handle(path, promhttp.InstrumentHandlerDuration(times, h))
	}
	timed("/v1/allow", s.post(Decide, s.allow, http.StatusOK, http.StatusTooManyRequests))
	timed("/v1/peek", s.post(Decide|Read, s.peek)) // a take tells as much
	timed("/v1/reset", s.post(Administer, s.reset))
	timed("/v1/refund", s.post(Decide, s.refund))
	timed("/v1/settle", s.post(Decide, s.settle))
	if s.config.Gateway != (Gateway{}) {
		timed(gatewayPath, http.HandlerFunc(s.gateway))
	}
	if s.config.Top != nil {
		timed(topPath, http.HandlerFunc(s.top))
	}
	if s.config.Admin != nil {
		mux.Handle(adminPath, s.admin())
	}
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, "application/json", map[string]string{"status": "ok"})
	})
	mux.HandleFunc("/readyz", s.readyz)
	mux.Handle("/metrics", metrics)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		newProblem(http.StatusNotFound, "there is no path %q: POST /v1/allow, /v1/peek, /v1/reset, /v1/refund, "+
			"/v1/settle; GET /v1/top, /v1/gateway (with --gateway-limiter and --gateway-key), /admin/ (with --admin), /healthz, /readyz, /metrics",
			r.URL.Path).write(w)
	})
	return mux
}

// answerer answers a request that brings token t, or says why it does not. A denial is to have the status denied.
type answerer func(w http.ResponseWriter, r *http.Request, t *Token, denied int) *problem

// post handles a request with JSON whose token needs the right. Clients may choose the status of a denial out of
// statuses, if there are any.
func (s *Server) post(right Right, answer answerer, statuses ...int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		t, denied, p := s.admit(w, r, right, []string{http.MethodPost}, statuses...)
		if p == nil {
			p = answer(w, r, t, denied)
		}
		if p != nil { // also if the client seems to have left: one that has closed its own half still reads
			p.write(w)
		}
	}
}

// admit checks what the header and the query of every request below /v1 must have. It returns the request's token,
// which has the right, and the status of a denial.
func (s *Server) admit(w http.ResponseWriter, r *http.Request, right Right, methods []string, statuses ...int) (
	t *Token, denied int, p *problem,
) {
	if t, p = s.token(r); p == nil {
		p = t.may(right)
	}
	if p == nil && !slices.Contains(methods, r.Method) {
		takes := strings.Join(methods, ", ")
		w.Header().Set("Allow", takes)
		p = newProblem(http.StatusMethodNotAllowed, "the method is %s: %s takes %s", r.Method, r.URL.Path, takes)
	}
	if p == nil {
		denied, p = statusOfDenial(r, statuses...)
	}
	return t, denied, p
}

// local refuses a web page whose name leads to this machine (DNS rebinding): to the browser, its requests stay within
// that page's site. No such name is a number or localhost.
func (s *Server) local(r *http.Request) *problem {
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	if !s.loopback || err == nil || strings.EqualFold(host, "localhost") {
		return nil
	}
	return newProblem(http.StatusForbidden, "the header Host is %q: without --token-file, a server that listens on "+
		"this machine only takes an IP address or localhost there", r.Host)
}

// limiter returns the limiter of that name, from the configuration or else from the table, for a request that brings
// token t. Every request gets its limiters here.
func (s *Server) limiter(ctx context.Context, t *Token, name string) (limiter, *problem) {
	if name != "" { // else it is missing, which is said below
		if p := t.mayUse(name); p != nil {
			return limiter{}, p
		}
	}
	if found, ok := s.limiters[name]; ok {
		return found, nil
	}
	var ofTable []string
	if s.rules != nil {
		ctx, cancel := context.WithTimeout(ctx, tableTimeout)
		defer cancel()
		if err := s.rules.Await(ctx); err != nil {
			return limiter{}, problemOf(err)
		}
		ofTable = s.rules.Limiters()
	}
	if _, known := slices.BinarySearch(ofTable, name); !known {
		known := slices.Concat(ofTable, slices.Collect(maps.Keys(s.limiters)))
		known = slices.DeleteFunc(known, func(other string) bool { return t.mayUse(other) != nil })
		slices.Sort(known)
		list := strings.Join(slices.Compact(known), ", ")
		if name == "" {
			return limiter{}, invalid("limiter", "is missing: it must be one of "+list)
		}
		p := newProblem(http.StatusNotFound, "limiter is %q: it must be one of %s", name, list)
		p.Field = "limiter"
		return limiter{}, p
	}
	return s.table, nil
}

const (
	// tableTimeout is the time limit of a limiter that is in the table only.
	tableTimeout = time.Second

	// tableName is the limiter label of the metrics of all limiters that are in the table only.
	tableName = "(table)"
)

func (s *Server) makeLimiter(limit Limit) (limiter, error) {
	c := limit.Config
	c.Logger, c.Limits, c.Top = s.logger, s.rules, s.config.Top
	made, err := pglimit.New(s.config.Pool, limit.Strategy, c)
	return limiter{Limiter: made, config: c}, err
}

// unlimited is a placeholder limit for requests without a limit in the table. They are not answered with it: see
// noRule.
var unlimited = pglimit.PerSecond(pglimit.MaxRate).WithBurst(int64(pglimit.MaxWindow))

// noRule says that a limiter of the table has no limit for the key.
func noRule(limiter, key string) *problem {
	p := newProblem(http.StatusNotFound, "limiter is %q, and the table pglimit.limits has no limit of it for key %q: "+
		"pglimit limits set %s --limit 10/s --note default", limiter, key, limiter)
	p.Field = "limiter"
	return p
}

// all returns the current limiters, by name.
func (s *Server) all() map[string]limiter {
	all := maps.Clone(s.limiters)
	if s.table.Limiter != nil {
		all[tableName] = s.table
	}
	return all
}

func (s *Server) closeLimiters(ctx context.Context) error {
	all := s.all()
	errs := make([]error, len(all))
	var closing sync.WaitGroup
	for i, name := range slices.Sorted(maps.Keys(all)) {
		closing.Go(func() {
			if err := all[name].Close(ctx); err != nil {
				errs[i] = fmt.Errorf("limiter %s did not end well: %w", name, err)
			}
		})
	}
	closing.Wait()
	return errors.Join(errs...)
}
