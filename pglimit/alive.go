package pglimit

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const askForLife = "select 1"

// ping asks Postgres for a sign of life, through the pool.
func (l *Limiter) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, defaultTimeout) // also where the caller has none
	defer cancel()
	_, err := l.session.Exec(ctx, askForLife)
	return noLife(err)
}

// signOfLife asks for a sign of life on a new connection: all connections of the pool may be
// waiting for rows that somebody holds locked. If the Pool has no Config, it is a ping.
func (l *Limiter) signOfLife(pool Pool) func(context.Context) error {
	configured, says := pool.(interface{ Config() *pgxpool.Config })
	if !says {
		return l.ping
	}
	return func(ctx context.Context) error {
		config := configured.Config()
		if config.BeforeConnect != nil {
			if err := config.BeforeConnect(ctx, config.ConnConfig); err != nil {
				return noLife(err)
			}
		}
		conn, err := pgx.ConnectConfig(ctx, config.ConnConfig)
		if pg := (*pgconn.PgError)(nil); errors.As(err, &pg) && pg.Code == tooManyConnections {
			return nil
		}
		if err != nil {
			return noLife(err)
		}
		defer conn.Close(ctx) //nolint:errcheck // the connection was for this question only
		_, err = conn.Exec(ctx, askForLife)
		return noLife(err)
	}
}

const tooManyConnections = "53300" // SQLSTATE

func noLife(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: no sign of life: %w", ErrUnavailable, err)
}
