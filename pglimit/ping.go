package pglimit

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ping asks Postgres for a sign of life on a new connection: all connections of the pool
// may be waiting, for rows that somebody holds locked or for a server that was away. If the
// pool has no Config, or is a *sql.DB, it asks through the pool.
func (l *Limiter) ping(pool any) func(context.Context) error {
	ask := func(ctx context.Context) error {
		_, err := l.session.Exec(ctx, "select 1")
		return err
	}
	switch pool := pool.(type) {
	case interface{ Config() *pgxpool.Config }:
		ask = func(ctx context.Context) error { return pingOn(ctx, pool.Config()) }
	case SQLDB:
		ask = l.session.(interface{ Ping(context.Context) error }).Ping
	}
	return func(ctx context.Context) error {
		err := l.guard(func() error { return ask(ctx) })
		if err != nil {
			return fmt.Errorf("%w: no sign of life: %w", ErrUnavailable, err)
		}
		return nil
	}
}

func pingOn(ctx context.Context, config *pgxpool.Config) error {
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
