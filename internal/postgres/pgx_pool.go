package postgres

import (
	"context"
	"net"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Pool is a *pgxpool.Pool, or a type that embeds one.
type Pool interface {
	pgxSender
	AcquireFunc(ctx context.Context, f func(*pgxpool.Conn) error) error
}

// OnPool is a session that sends each call on a free connection of the pool.
func OnPool(pool Pool) rate.Session { return &pooled{connections: pgxPool{pool}} }

type pgxPool struct{ Pool }

func (p pgxPool) use(ctx context.Context, f func(rate.Session) error) error {
	return p.AcquireFunc(ctx, func(acquired *pgxpool.Conn) error {
		conn := acquired.Conn()
		on := &pgxSession{pgxSender: conn, conn: conn}
		err := f(on)
		return blame(ctx, err, conn.IsClosed(), on.succeeded, addressOf(conn))
	})
}

func (p pgxPool) forget(context.Context) {
	if pool, ok := p.Pool.(interface{ Reset() }); ok {
		pool.Reset()
	}
}

func (p pgxPool) open() int {
	if stat := p.stat(); stat != nil {
		return int(stat.IdleConns() + stat.AcquiredConns())
	}
	return 0
}

func (p pgxPool) busy() int {
	if stat := p.stat(); stat != nil && stat.AcquiredConns() >= stat.MaxConns() {
		return int(stat.MaxConns())
	}
	return 0
}

func (p pgxPool) stat() *pgxpool.Stat {
	if pool, ok := p.Pool.(interface{ Stat() *pgxpool.Stat }); ok {
		return pool.Stat()
	}
	return nil
}

// sign asks on a new connection: all connections of the pool may be waiting, for rows that somebody
// holds locked or for a server that was away. If the pool has no Config, it asks through the pool.
func (p pgxPool) sign(ctx context.Context) error {
	pool, ok := p.Pool.(interface{ Config() *pgxpool.Config })
	if !ok {
		_, err := p.Exec(ctx, "select 1")
		return err
	}
	config := pool.Config()
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
	var why string
	if err := conn.QueryRow(ctx, canWrite, pgx.QueryExecModeExec).Scan(&why); err != nil {
		return err
	}
	return cannotWrite(addressOf(conn), why)
}

// addressOf the server, or of the pooler before it.
func addressOf(conn *pgx.Conn) func() string {
	return func() string {
		config := conn.Config()
		return net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port)))
	}
}
