package deploy_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/pglimit/ratelimit/adapters/promlimit"
	"github.com/pglimit/ratelimit/cleanup"
	"github.com/pglimit/ratelimit/internal/pgserver"
	"github.com/pglimit/ratelimit/migrations"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/semaphore"
	"github.com/pglimit/ratelimit/strategies"
)

// shop is the service that all tests look at: under load, on a Postgres of its own.
var shop *service

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	server, err := pgserver.Start(ctx, pgserver.Options{Settings: map[string]string{"fsync": "off"}})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		if os.Getenv("CI") == "true" {
			return 1
		}
		return 0 // as other tests that need a Postgres are skipped
	}
	defer func() { _ = server.Stop() }()
	if err := migrate(ctx, server); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if shop, err = open(ctx, server.URL("shop")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer shop.close()
	return m.Run()
}

// migrate makes the database migrated, of which all others are copies.
func migrate(ctx context.Context, server *pgserver.Server) error {
	first, err := pgx.Connect(ctx, server.URL(""))
	if err != nil {
		return err
	}
	defer func() { _ = first.Close(ctx) }()
	if _, err := first.Exec(ctx, "create database migrated"); err != nil {
		return err
	}
	pool, err := pgxpool.New(ctx, server.URL("migrated"))
	if err != nil {
		return err
	}
	err = migrations.Up(ctx, pool)
	pool.Close() // nobody may use what is copied
	if err == nil {
		_, err = first.Exec(ctx, "create database shop template migrated")
	}
	return err
}

// service has two endpoints, each with a limiter, and exports all metrics that there are.
type service struct {
	*http.ServeMux
	registry *prometheus.Registry
	pool     *pgxpool.Pool
	limiters []*pglimit.Limiter
	cleaner  *cleanup.Cleaner
	seconds  *prometheus.HistogramVec
	stop     context.CancelFunc // the load
	load     sync.WaitGroup
}

func open(ctx context.Context, url string) (*service, error) {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return nil, err
	}
	s := &service{
		ServeMux: http.NewServeMux(), registry: prometheus.NewPedanticRegistry(), pool: pool,
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "http_request_duration_seconds", Help: "Time to answer a request.", Buckets: prometheus.DefBuckets,
		}, []string{"handler", "code"}),
	}
	if err := s.add("orders", strategies.TokenBucket{}, pglimit.Leases{On: true}); err != nil {
		return nil, err
	}
	if err := s.add("logins", strategies.Upsert{}, pglimit.Leases{}); err != nil {
		return nil, err
	}
	imports, err := semaphore.New(pool, semaphore.Config{Name: "imports", Places: 5})
	if err != nil {
		return nil, err
	}
	if _, err := imports.Acquire(ctx, "imports"); err != nil { // held until the server stops
		return nil, err
	}
	s.registry.MustRegister(promlimit.New(s.limiters...), s.seconds, promlimit.NewDatabase(pool, nil), promlimit.NewSemaphores(imports))
	s.Handle("/metrics", promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{}))

	if s.cleaner, err = cleanup.New(pool, strategies.All(), cleanup.Config{Interval: time.Second}); err != nil {
		return nil, err
	}
	if err := s.cleaner.Start(ctx); err != nil {
		return nil, err
	}
	loading, stop := context.WithCancel(context.Background())
	s.stop = stop
	for _, limiter := range s.limiters {
		s.load.Go(func() { s.use(loading, "/"+limiter.Config().Name) })
	}
	err = s.learnToKnow(ctx)
	return s, err
}

// add an endpoint, limited to 20 requests a second and user.
func (s *service) add(name string, strategy pglimit.Strategy, leases pglimit.Leases) error {
	limiter, err := pglimit.New(s.pool, strategy, pglimit.Config{
		Name: name, Limit: pglimit.PerSecond(20), Leases: leases, OnError: pglimit.FailOpen,
	})
	if err != nil {
		return err
	}
	s.limiters = append(s.limiters, limiter)
	answer := func(w http.ResponseWriter, r *http.Request) {
		if d, err := limiter.Allow(r.Context(), r.URL.Query().Get("user")); err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
		} else if !d.Allowed {
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}
	s.Handle("/"+name, promhttp.InstrumentHandlerDuration(s.seconds.MustCurryWith(prometheus.Labels{"handler": "/" + name}), http.HandlerFunc(answer)))
	return nil
}

// use an endpoint 200 times a second, as two users.
func (s *service) use(ctx context.Context, path string) {
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for ctx.Err() == nil {
		for _, user := range []string{"ann", "ben"} {
			s.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodGet, path+"?user="+user, nil))
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
}

// learnToKnow waits until everything has happened that a metric only then exists for: grants, denials
// and a run of the cleanup.
func (s *service) learnToKnow(ctx context.Context) error {
	for {
		families, err := s.registry.Gather()
		if err != nil {
			return err
		}
		known := map[string]bool{}
		answers := 0
		for _, family := range families {
			known[family.GetName()] = true
			if family.GetName() == "http_request_duration_seconds" {
				answers = len(family.GetMetric())
			}
		}
		if answers == 4 && known["pglimit_database_cleanup_run_timestamp_seconds"] {
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("the service did not get under way: %w", ctx.Err())
		}
	}
}

func (s *service) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s.stop()
	s.load.Wait()
	_ = s.cleaner.Stop(ctx)
	for _, limiter := range s.limiters {
		_ = limiter.Close(ctx)
	}
	s.pool.Close()
}
