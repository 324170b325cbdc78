package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/pglimit/ratelimit/adapters/adminlimit"
	"github.com/pglimit/ratelimit/adapters/httplimit"
	"github.com/pglimit/ratelimit/adapters/promlimit"
	"github.com/pglimit/ratelimit/cleanup"
	"github.com/pglimit/ratelimit/migrations"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// limit of each user at each endpoint: one request per 2 s.
var limit = pglimit.Every(2 * time.Second)

// service is one instance.
type service struct {
	pool     *pgxpool.Pool
	limiters []*pglimit.Limiter
	cleaner  *cleanup.Cleaner
	metrics  *prometheus.Registry
	mux      *http.ServeMux
	migrated chan struct{} // closed when the database is
}

// newService makes the handlers. It does not call Postgres, so a service starts even if Postgres is down.
func newService(ctx context.Context, database string) (*service, error) {
	s := &service{mux: http.NewServeMux(), metrics: prometheus.NewRegistry(), migrated: make(chan struct{})}
	if err := s.open(ctx, database); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *service) open(ctx context.Context, database string) (err error) {
	config, err := pgxpool.ParseConfig(database)
	if err != nil {
		return err
	}
	config.MaxConns = 14 // 5 for each limiter, 2 for the cleanup, and 2 for what the limiters share: see docs/operations.md
	if s.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return err
	}
	// Each instance has a Cleaner. One of them does each run.
	if s.cleaner, err = cleanup.New(s.pool, []strategies.TokenBucket{{}}, cleanup.Config{Interval: time.Minute}); err != nil {
		return err
	}
	return s.routes()
}

// prepare migrates the database and starts its cleanup. It waits until Postgres answers or ctx ends, and logs that;
// meanwhile the limited endpoints answer 503.
func (s *service) prepare(ctx context.Context) {
	// Any number of instances may do this at once.
	err := migrations.Up(ctx, s.pool, migrations.WaitForServer(), migrations.WithoutExclusionRange(), migrations.WithLogger(slog.Default()))
	if err == nil {
		err = s.cleaner.Start(ctx)
	}
	switch {
	case err == nil:
		close(s.migrated)
	case ctx.Err() == nil:
		slog.Error("the database is not ready for rate limits", "error", err)
	}
}

func (s *service) routes() error {
	seconds := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "http_request_duration_seconds", Help: "Time to answer a request.", Buckets: []float64{.0001, .0005, .001, .005, .01, .05, .1, .5, 1},
	}, []string{"handler", "code"})
	table := pglimit.LimitsFrom(s.pool, pglimit.LimitsConfig{Logger: slog.Default()}) // changed on the admin page
	top := pglimit.TopFrom(s.pool, pglimit.TopConfig{Logger: slog.Default()})         // who is limited most
	for _, endpoint := range []string{"search", "export"} {
		limiter, err := pglimit.New(s.pool, strategies.TokenBucket{}, pglimit.Config{
			Name:   endpoint, // instances with the same name share their buckets
			Limit:  limit,    // of keys for which the table has no rule
			Limits: table,
			Top:    top,
			Logger: slog.Default(),
		})
		if err != nil {
			return err
		}
		s.limiters = append(s.limiters, limiter)

		// A gateway that authenticates users sets this header. If clients could set it, they would have no limit.
		limited := httplimit.New(limiter, httplimit.Config{Key: httplimit.Header("X-User")})
		var handler http.Handler = promhttp.InstrumentHandlerDuration(seconds.MustCurryWith(prometheus.Labels{"handler": "/" + endpoint}), limited(answer(endpoint)))
		s.mux.Handle("GET /"+endpoint, handler)
	}
	s.metrics.MustRegister(promlimit.New(s.limiters...), promlimit.NewDatabase(s.pool, slog.Default()), seconds, collectors.NewGoCollector())
	s.mux.Handle("GET /metrics", promhttp.HandlerFor(s.metrics, promhttp.HandlerOpts{}))
	// Whoever reaches the page under an IP address may change limits. In a service of yours, Config.May asks your login.
	s.mux.Handle("/admin/", http.StripPrefix("/admin", adminlimit.New(s.pool, adminlimit.Config{Top: top})))
	s.mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	return nil
}

// answer is what the endpoint does if a request is within the limit.
func answer(endpoint string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, "the answer of /%s\n", endpoint) // the client is gone
	})
}

// serve serves until ctx ends, and prepares the database meanwhile. Then running requests get their answers, within ten
// seconds.
func (s *service) serve(ctx context.Context, listener net.Listener) error {
	var preparing sync.WaitGroup
	defer preparing.Wait()
	preparation, stop := context.WithCancel(ctx)
	defer stop()
	preparing.Go(func() { s.prepare(preparation) })

	// Behind a gateway, IdleTimeout has to be longer than the gateway keeps connections.
	server := &http.Server{Handler: s.mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, IdleTimeout: 30 * time.Second}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil {
		return errors.Join(err, server.Close())
	}
	return nil
}

// close what newService opened: first what uses the pool, then the pool.
func (s *service) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var err error
	for _, limiter := range s.limiters {
		err = errors.Join(err, limiter.Close(ctx))
	}
	if s.cleaner != nil {
		err = errors.Join(err, s.cleaner.Stop(ctx))
	}
	if err != nil {
		slog.Error("stopping", "error", err)
	}
	if s.pool != nil {
		s.pool.Close()
	}
}
