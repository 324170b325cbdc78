package pglimittest

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
)

// New is pglimit.New without a pool and without stages. Each request of the limiter is a call of
// the strategy, which alone knows what time it is: Combine, Memory, Leases and Breaker of the
// configuration are switched off, because a denial that this process remembers, a lease and an
// open breaker would last by another clock. Everything else is as in production, OnError and
// Timeout too. (Timeout, Config.Adjust and a fallback by [pglimit.FailLocal] go by the time of the process.)
//
// The strategy is one of [Memory] or [MemoryOn], or a type that embeds it. Without Config.Adjust, the limiter has no
// goroutine and no connection, so a test need not close it.
func New(strategy pglimit.Strategy, config pglimit.Config) (*pglimit.Limiter, error) {
	config.Combine.Off, config.Memory.Off, config.Leases.On, config.Breaker.Off = true, true, false, true
	return pglimit.New(pool{}, strategy, config)
}

// Pool is a pool without a database, for [pglimit.New]. It gives a sign of life, unless the
// strategy is told to [Strategy.Fail]; a statement is an error.
func (s *Strategy) Pool() pglimit.Pool { return pool{s} }

type pool struct{ strategy *Strategy }

var errNoDatabase = errors.New("pglimittest: there is no database behind this pool")

// Exec answers what a circuit breaker asks.
func (p pool) Exec(ctx context.Context, sql string, _ ...any) (tag pgconn.CommandTag, err error) {
	if sql != "select 1" || p.strategy == nil {
		return tag, errNoDatabase
	}
	return tag, p.strategy.locked(ctx, func(int64) error { return nil })
}

func (pool) QueryRow(context.Context, string, ...any) pgx.Row { return nothing{} }

func (pool) SendBatch(context.Context, *pgx.Batch) pgx.BatchResults { return nothing{} }

func (pool) AcquireFunc(context.Context, func(*pgxpool.Conn) error) error { return errNoDatabase }

// nothing is what a pool without a database answers.
type nothing struct{}

func (nothing) Scan(...any) error                { return errNoDatabase }
func (nothing) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, errNoDatabase }
func (nothing) Query() (pgx.Rows, error)         { return nil, errNoDatabase }
func (nothing) QueryRow() pgx.Row                { return nothing{} }
func (nothing) Close() error                     { return errNoDatabase }
func (nothing) Tx() pgx.Tx                       { return nil }
