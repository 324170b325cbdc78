package migrations

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/ratelimit/internal/postgres"
)

// untilReached runs attempt until it succeeds or fails for another reason than a server
// that cannot be reached.
func untilReached(ctx context.Context, o options, attempt func() error) error {
	for tries := 1; ; tries++ {
		err := attempt()
		if !isUnreachable(err) {
			return err
		}
		if tries == 1 {
			o.log.WarnContext(ctx, "pglimit: the migration waits for the server", "error", err)
		}
		select {
		case <-time.After(time.Second/2 + rand.N(time.Second)):
		case <-ctx.Done():
			return fmt.Errorf("%w (gave up in try %d: %w)", err, tries, ctx.Err())
		}
	}
}

// isUnreachable says that the server does not answer, is starting or stopping, or has no
// connection left.
func isUnreachable(err error) bool {
	if errors.As(err, new(*pgconn.PgError)) {
		return postgres.Is(err, postgres.CannotConnectNow, postgres.TooManyConnections)
	}
	connect := (*pgconn.ConnectError)(nil)
	return errors.As(err, &connect) || postgres.IsBroken(err)
}
