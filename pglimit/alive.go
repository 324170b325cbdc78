package pglimit

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// signOfLife asks Postgres for a sign of life on a new connection: all connections of the pool
// may be waiting, for rows that somebody holds locked or for a server that was away. If the
// Pool has no Config, it asks through the pool.
func (l *Limiter) signOfLife(pool Pool) func(context.Context) error {
	configured, says := pool.(interface{ Config() *pgxpool.Config })
	return func(ctx context.Context) error {
		err := l.guard(func() error {
			if !says {
				_, err := l.session.Exec(ctx, "select 1")
				return err
			}
			return askForLife(ctx, configured.Config())
		})
		if err != nil {
			return fmt.Errorf("%w: no sign of life: %w", ErrUnavailable, err)
		}
		return nil
	}
}

func askForLife(ctx context.Context, config *pgxpool.Config) error {
	if config.BeforeConnect != nil {
		if err := config.BeforeConnect(ctx, config.ConnConfig); err != nil {
			return err
		}
	}
	conn, err := pgx.ConnectConfig(ctx, config.ConnConfig)
	if err != nil {
		return err
	}
	defer conn.Close(ctx) //nolint:errcheck // the connection was for this question only
	_, err = conn.Exec(ctx, "select 1")
	return err
}
