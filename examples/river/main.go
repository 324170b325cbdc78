// Command river sends mails out of a queue of River's, ten a minute for each customer. What is denied sleeps, and tries
// again: that takes no attempt. Its own module: DATABASE_URL=postgres://localhost/test go run . ann ben
package main

import (
	"cmp"
	"context"
	"fmt"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/pglimit/ratelimit/migrations"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

type mail struct{ Customer string }

func (mail) Kind() string { return "mail" }

type mailer struct {
	river.WorkerDefaults[mail]
	*pglimit.Limiter
}

func (m *mailer) Work(ctx context.Context, job *river.Job[mail]) error {
	d, err := m.Allow(ctx, job.Args.Customer)
	if err != nil || !d.Allowed {
		return cmp.Or(err, river.JobSnooze(d.RetryAfter))
	}
	_, err = fmt.Println("mailed", job.Args.Customer)
	return err
}

func main() {
	ctx := context.Background()
	pool := must(pgxpool.New(ctx, os.Getenv("DATABASE_URL")))
	driver := riverpgxv5.New(pool)
	must(must(rivermigrate.New(driver, nil)).Migrate(ctx, rivermigrate.DirectionUp, nil))
	must(0, migrations.Up(ctx, pool))
	config := river.Config{Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 10}}, Workers: river.NewWorkers()}
	river.AddWorker(config.Workers, &mailer{Limiter: must(pglimit.New(pool, strategies.TokenBucket{}, pglimit.Config{Name: "mail", Limit: pglimit.PerMinute(10)}))})
	client := must(river.NewClient(driver, &config))
	for _, customer := range os.Args[1:] {
		must(client.Insert(ctx, mail{customer}, nil))
	}
	must(0, client.Start(ctx))
	<-client.Stopped()
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err) //nolint:forbidigo // an example ends so
	}
	return value
}
