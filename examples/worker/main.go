// Command worker calls a third-party API for each line of its input. All workers together, on any number of machines,
// stay within the API's quota.
//
//	seq 100 | DATABASE_URL=postgres://localhost/test go run ./examples/worker
package main

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

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
	// A burst of 1: evenly, 50 ms apart.
	quota, err := pglimit.New(pool, strategies.TokenBucket{}, pglimit.Config{Name: "partner", Limit: pglimit.PerSecond(20).WithBurst(1), MaxWait: time.Minute})
	check(err)
	jobs := make(chan string)
	var workers sync.WaitGroup
	for range 4 {
		workers.Go(func() {
			for job := range jobs {
				// First come, first served across all processes. After Ctrl-C nobody waits, and the tokens go back.
				if _, err := quota.Wait(ctx, "api"); err != nil {
					slog.Error("not called", "job", job, "error", err)
					continue
				}
				fmt.Println("called", job) // your call, with ctx
			}
		})
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		jobs <- lines.Text()
	}
	close(jobs)
	workers.Wait()
}

func check(err error) {
	if err != nil {
		slog.Error("worker ended", "error", err)
		os.Exit(1)
	}
}
