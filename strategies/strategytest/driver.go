package strategytest

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Driver opens the sessions on which a suite runs, see [RunOn].
type Driver interface {
	// Session on a pool.
	Session() rate.Session

	// Begin a transaction at READ COMMITTED.
	Begin(ctx context.Context) (Tx, error)

	// Conn is a session on one connection that is in no transaction, and what gives it back.
	Conn(ctx context.Context) (session rate.Session, release func(), err error)
}

// Tx is a session in a transaction, and what ends it.
type Tx struct {
	rate.Session
	Commit, Rollback func(context.Context) error
}

// onPgx is the Driver of [Run].
func onPgx(_ *testing.T, pool *pgxpool.Pool) Driver { return pgxDriver{pool} }

type pgxDriver struct{ pool *pgxpool.Pool }

func (d pgxDriver) Session() rate.Session { return postgres.OnPool(d.pool) }

func (d pgxDriver) Begin(ctx context.Context) (Tx, error) {
	tx, err := d.pool.Begin(ctx)
	if err != nil {
		return Tx{}, err
	}
	return Tx{postgres.InTx(tx), tx.Commit, tx.Rollback}, nil
}

func (d pgxDriver) Conn(ctx context.Context) (rate.Session, func(), error) {
	conn, err := d.pool.Acquire(ctx)
	if err != nil {
		return nil, nil, err
	}
	return postgres.OnConn(conn.Conn()), conn.Release, nil
}

// begin a transaction of the caller's. What is left of it at the end of the test is rolled back.
func (s *suite) begin() Tx {
	s.Helper()
	tx, err := s.driver.Begin(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(s.Context())) })
	return tx
}

// within calls f in a transaction, and commits it, or rolls back if f fails or ends the test.
func within(ctx context.Context, driver Driver, f func(Tx) error) error {
	tx, err := driver.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // nothing, after a commit
	if err := f(tx); err != nil {
		return err
	}
	return tx.Commit(ctx)
}
