package cleanup_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/cleanup"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// In a service: every instance starts one, one of them does each run.
func ExampleCleaner_Start() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://localhost/app")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()

	cleaner, err := cleanup.New(pool, strategies.All(), cleanup.Config{
		OnRun: func(r cleanup.Report) {
			log.Printf("removed %d rows in %v (%v)", r.Removed, r.Duration, r.Err)
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := cleaner.Start(ctx); err != nil {
		log.Fatal(err)
	}
	defer func() { _ = cleaner.Stop(ctx) }()

	// Serve.
}

// From cron, or by hand: now, unless somebody else is at it.
func ExampleCleaner_RunOnce() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://localhost/app")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()

	cleaner, err := cleanup.New(pool, []pglimit.Strategy{strategies.TokenBucket{}}, cleanup.Config{BatchSize: 5000})
	if err != nil {
		log.Fatal(err)
	}
	report, err := cleaner.RunOnce(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for _, s := range report.Strategies {
		fmt.Printf("%s: %d rows\n", s.Strategy, s.Removed)
	}
}

// The lock serves any gocron job: this report is sent once a day, however many
// instances there are.
func ExampleLocker() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://localhost/app")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()

	locker, err := cleanup.NewLocker(pool, cleanup.LockerConfig{Interval: 24 * time.Hour})
	if err != nil {
		log.Fatal(err)
	}
	scheduler, err := gocron.NewScheduler()
	if err != nil {
		log.Fatal(err)
	}
	_, err = scheduler.NewJob(
		gocron.DailyJob(1, gocron.NewAtTimes(gocron.NewAtTime(3, 0, 0))),
		gocron.NewTask(func() { log.Print("sending the report") }),
		gocron.WithName("daily report"), // the lock's name
		gocron.WithDistributedJobLocker(locker),
	)
	if err != nil {
		log.Fatal(err)
	}
	scheduler.Start()
	defer func() { _ = scheduler.Shutdown() }()

	// Serve.
}
