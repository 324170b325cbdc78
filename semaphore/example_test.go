package semaphore_test

import (
	"context"
	"errors"
	"log"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/semaphore"
	"github.com/pglimit/ratelimit/strategies"
)

var pool *pgxpool.Pool // of the service

// At most five imports of a tenant at once, on all machines.
func Example() {
	ctx := context.Background()
	imports, err := semaphore.New(pool, semaphore.Config{Name: "imports", Places: 5, MaxWait: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	defer imports.Close(ctx) //nolint:errcheck // an example

	permit, err := imports.Acquire(ctx, "tenant:42")
	if errors.Is(err, semaphore.ErrFull) {
		log.Print("five imports are running, and none has ended for a minute")
		return
	} else if err != nil {
		log.Print(err) // Postgres did not answer
		return
	}
	defer permit.Release(ctx) //nolint:errcheck // the place comes back with the TTL

	if err := importFor(permit.Context(), permit.Token); errors.Is(permit.Err(), semaphore.ErrLost) {
		log.Print("the import was stopped: others may have its place by now: ", err)
	}
}

// At most five imports of a tenant at once, and a hundred an hour: an import that is refused by one does not count
// for the other.
func ExampleSemaphore_TryAcquireIf() {
	ctx := context.Background()
	imports, err := semaphore.New(pool, semaphore.Config{Name: "imports", Places: 5})
	if err != nil {
		log.Fatal(err)
	}
	defer imports.Close(ctx) //nolint:errcheck // an example
	hourly, err := pglimit.New(pool, strategies.TokenBucket{}, pglimit.Config{Name: "imports", Limit: pglimit.PerHour(100)})
	if err != nil {
		log.Fatal(err)
	}
	defer hourly.Close(ctx) //nolint:errcheck // an example

	var d pglimit.Decision
	permit, err := imports.TryAcquireIf(ctx, "tenant:42", 1, func(ctx context.Context, tx pglimit.Session) (err error) {
		d, err = hourly.On(tx).Allow(ctx, "tenant:42")
		if err == nil && !d.Allowed {
			err = errTooMany
		}
		return err
	})
	switch {
	case errors.Is(err, semaphore.ErrFull):
		log.Print("five imports are running")
	case errors.Is(err, errTooMany):
		log.Print("a hundred were made: come back after ", d.RetryAfter)
	case err != nil:
		log.Print(err) // Postgres did not answer
	default:
		defer permit.Release(ctx) //nolint:errcheck // the place comes back with the TTL
		_ = importFor(permit.Context(), permit.Token)
	}
}

var errTooMany = errors.New("too many imports")

// importFor writes with the token, and ends with its context.
func importFor(context.Context, int64) error { return nil }
