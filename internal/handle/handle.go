// Package handle takes connections from what an application has: a pool of pgx, or a *sql.DB.
package handle

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pglimit/ratelimit/internal/session"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// DB is a pool of pgx, or a *sql.DB with pgx's driver, github.com/jackc/pgx/v5/stdlib.
type DB interface{ *pgxpool.Pool | *sql.DB }

// Handle is one of the two.
type Handle struct {
	pool *pgxpool.Pool
	db   *sql.DB
}

// Of returns the Handle of db.
func Of[D DB](db D) Handle {
	switch db := any(db).(type) {
	case *pgxpool.Pool:
		return Handle{pool: db}
	case *sql.DB:
		return Handle{db: db}
	}
	return Handle{}
}

// IsNil says whether it was made of a nil.
func (h Handle) IsNil() bool { return h.pool == nil && h.db == nil }

// MaxConns is how many connections there may be at once, zero if as many as are asked for.
func (h Handle) MaxConns() int {
	if h.db != nil {
		return h.db.Stats().MaxOpenConnections
	}
	return int(h.pool.Config().MaxConns)
}

// Session sends each call on a free connection.
func (h Handle) Session() rate.Session {
	if h.db != nil {
		return session.OnSQLDB(h.db)
	}
	return session.OnPool(h.pool)
}

// Acquire returns a connection that is the caller's until release is called. One that is broken then, or
// in a transaction, is not used again.
func (h Handle) Acquire(ctx context.Context) (conn *stdlib.Conn, release func(), err error) {
	if h.db == nil {
		acquired, err := stdlib.GetPoolConnector(h.pool).Connect(ctx)
		if err != nil {
			return nil, nil, err
		}
		return acquired.(*stdlib.Conn), func() { _ = acquired.Close() }, nil //nolint:forcetypeassert // see Connect
	}
	acquired, err := h.db.Conn(ctx)
	if err != nil {
		return nil, nil, err
	}
	release = func() { _ = acquired.Close() }
	err = acquired.Raw(func(driver any) error {
		var is bool
		if conn, is = driver.(*stdlib.Conn); !is {
			return fmt.Errorf("the *sql.DB has the driver of a %T: this needs pgx's, github.com/jackc/pgx/v5/stdlib", driver)
		}
		return nil
	})
	if err != nil {
		release()
		return nil, nil, err
	}
	return conn, release, nil
}
