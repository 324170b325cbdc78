package cleanup_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/cleanup"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
)

var pool *pgxpool.Pool // of the service

// In a service: every instance starts one, one of them does each run.
func ExampleCleaner_Start() { //nolint:testableexamples // takes a Postgres
	ctx := context.Background()
	cleaner, err := cleanup.New(pool, strategies.All(), cleanup.Config{
		OnRun: func(r cleanup.Report) {
			fmt.Println(r.Removed, "rows in", r.Duration, r.Err)
		},
	})
	if err == nil {
		err = cleaner.Start(ctx)
	}
	if err != nil {
		log.Fatal(err)
	}

	// Serve; at the end:
	if err := cleaner.Stop(ctx); err != nil {
		log.Print(err)
	}
}

// From cron, or by hand: now, unless somebody else is at it.
func ExampleCleaner_RunOnce() { //nolint:testableexamples // takes a Postgres
	cleaner, err := cleanup.New(pool, []rate.Sweeper{strategies.TokenBucket{}}, cleanup.Config{BatchSize: 5000})
	if err != nil {
		log.Fatal(err)
	}
	report, err := cleaner.RunOnce(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	for _, s := range report.Strategies {
		fmt.Printf("%s: %d rows\n", s.Strategy, s.Removed)
	}
}

// The lock serves any gocron job: this report is sent once a day, however many
// instances there are.
func ExampleLocker() { //nolint:testableexamples // takes a Postgres
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
		gocron.NewTask(func() { slog.Info("sending the report") }),
		gocron.WithName("daily report"), // the lock's name
		gocron.WithDistributedJobLocker(locker),
	)
	if err != nil {
		log.Fatal(err)
	}
	scheduler.Start()

	// Serve; at the end:
	if err := scheduler.Shutdown(); err != nil {
		log.Print(err)
	}
}
