package main

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/pglimit/ratelimit/adapters/promlimit"
)

// serveMetrics of the database at /metrics until stop is called.
func serveMetrics(ctx context.Context, address string, pool *pgxpool.Pool, log *slog.Logger) (stop func(), err error) {
	listener, err := listen(ctx, "--metrics", address)
	if err != nil {
		return nil, err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(promlimit.NewDatabase(pool, log), collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	server := &http.Server{
		Handler: mux, ReadTimeout: 5 * time.Second, WriteTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	go func() { _ = server.Serve(listener) }() // it ends by Close
	log.Info("pglimit cleanup exports metrics", "listen", listener.Addr().String())
	return func() { _ = server.Close() }, nil
}
