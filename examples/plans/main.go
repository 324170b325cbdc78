// Command plans is a service whose users have plans, each with a limit per minute and per day.
//
//	DATABASE_URL=postgres://localhost/test go run ./examples/plans
//	curl -i -H 'X-User: ann' localhost:8080
package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/adapters/httplimit"
	"github.com/pglimit/ratelimit/migrations"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

type plan struct{ minute, day pglimit.Limit }

var (
	free   = plan{pglimit.PerMinute(5), pglimit.Per(100, 24*time.Hour)}
	pro    = plan{pglimit.PerMinute(600).WithBurst(50), pglimit.Per(100_000, 24*time.Hour)}
	planOf = map[string]plan{"ann": pro} // yours is in the database. A user who upgrades has the difference at once
)

// userOf returns the authenticated user: here a gateway sets X-User on each request.
func userOf(r *http.Request) string { return r.Header.Get("X-User") }

func main() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	check(err)
	check(migrations.Up(ctx, pool))
	limiter, err := pglimit.New(pool, strategies.TokenBucket{}, pglimit.Config{Name: "minute", Limit: free.minute})
	check(err)
	limit := httplimit.New(limiter, httplimit.Config{
		Key: httplimit.Subject("user", userOf),
		Requests: func(r *http.Request, key string) []pglimit.Request { // both or none is taken
			p := cmp.Or(planOf[userOf(r)], free)
			return []pglimit.Request{{Key: key, Limit: p.minute}, {Limiter: "day", Key: key, Limit: p.day}}
		},
	})
	hello := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = fmt.Fprintln(w, "hello", userOf(r)) })
	server := &http.Server{Addr: cmp.Or(os.Getenv("ADDR"), "localhost:8080"), Handler: limit(hello), ReadTimeout: 10 * time.Second, IdleTimeout: 30 * time.Second}
	check(server.ListenAndServe())
}

func check(err error) {
	if err != nil {
		slog.Error("plans ended", "error", err)
		os.Exit(1)
	}
}
