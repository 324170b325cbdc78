// Command client gets URLs of somebody else's API. All clients together, on any number of machines, stay within the
// limit. If the API tells one of them to wait (429 with Retry-After), all of them wait.
//
//	DATABASE_URL=postgres://localhost/test go run ./examples/client https://api.github.com/{zen,meta}
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/adapters/httplimit"
	"github.com/pglimit/ratelimit/migrations"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	check(err)
	check(migrations.Up(ctx, pool))
	// One bucket for each host. A burst of 1: evenly, 200 ms apart.
	config := pglimit.Config{Name: "outbound", Limit: pglimit.PerSecond(5).WithBurst(1)}
	limiter, err := pglimit.New(pool, strategies.TokenBucket{}, config)
	check(err)
	client := &http.Client{Transport: &httplimit.Transport{Limiter: limiter, Retry: true}, Timeout: 30 * time.Second}
	for _, url := range os.Args[1:] {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody) //nolint:gosec // any URL
		check(err)
		response, err := client.Do(request) //nolint:gosec // any URL
		switch {
		case errors.Is(err, pglimit.ErrWaitTooLong): // a queue would try again later
			fmt.Println("not sent", url)
		case err != nil:
			slog.Error("no response", "error", err)
		default:
			_ = response.Body.Close() // yours reads it
			fmt.Println(response.Status, url)
		}
	}
}

func check(err error) {
	if err != nil {
		slog.Error("client ended", "error", err)
		os.Exit(1)
	}
}
