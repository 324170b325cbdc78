// Command hello answers each client ten times a second. It has the Go of the README and the first of docs/guide.md in
// full. It migrates the database of DATABASE_URL.
//
//	DATABASE_URL=postgres://localhost/test go run ./examples/hello
package main

import (
	"context"
	"log/slog"
	"net/http"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/adapters/httplimit"
	"github.com/pglimit/ratelimit/cleanup"
	"github.com/pglimit/ratelimit/migrations"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

func main() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	check(err)
	check(migrations.Up(ctx, pool)) // any number of instances may call it at once
	limiter, err := pglimit.New(pool, strategies.TokenBucket{}, pglimit.Config{
		Name:  "api",
		Limit: pglimit.PerSecond(10).WithBurst(20),
	})
	check(err)
	d, err := limiter.Allow(ctx, "user:42") // d.Allowed, d.Remaining, d.RetryAfter
	check(err)
	slog.Info("asked once", "allowed", d.Allowed)

	// Removes rows that no decision needs any more.
	cleaner, err := cleanup.New(pool, strategies.All(), cleanup.Config{})
	check(err)
	check(cleaner.Start(ctx)) // when the service stops: cleaner.Stop, limiter.Close, and then pool.Close

	// Each client is answered 429 with Retry-After when it asks too often.
	// Behind a load balancer say so, or all clients are one: httplimit.Proxies{Count: 1}.
	limit := httplimit.New(limiter, httplimit.Config{Key: httplimit.ClientIP(httplimit.Proxies{})})
	http.HandleFunc("/hello", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hello\n")) })
	server := &http.Server{
		Addr: "localhost:8080", Handler: limit(http.DefaultServeMux),
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, IdleTimeout: 30 * time.Second,
	}
	check(server.ListenAndServe())
}

func check(err error) {
	if err != nil {
		slog.Error("hello ended", "error", err)
		os.Exit(1)
	}
}
