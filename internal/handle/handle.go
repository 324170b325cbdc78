// Package handle takes connections from what an application has: a pool of pgx, or a *sql.DB.
package handle

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
)

// DB is a pool of pgx, or a *sql.DB with pgx's driver, github.com/jackc/pgx/v5/stdlib.
type DB interface{ *pgxpool.Pool | *sql.DB }

// Handle is one of the two; the other is nil.
type Handle struct {
	Pool *pgxpool.Pool
	SQL  *sql.DB
}

// Of returns the Handle of db.
func Of[D DB](db D) Handle {
	switch db := any(db).(type) {
	case *pgxpool.Pool:
		return Handle{Pool: db}
	case *sql.DB:
		return Handle{SQL: db}
	}
	return Handle{}
}

// IsNil says whether it was made of a nil.
func (h Handle) IsNil() bool { return h.Pool == nil && h.SQL == nil }

// MaxConns is how many connections there may be at once, zero if as many as are asked for.
func (h Handle) MaxConns() int {
	if h.SQL != nil {
		return h.SQL.Stats().MaxOpenConnections
	}
	return int(h.Pool.Config().MaxConns)
}

// Acquire returns a connection that is the caller's until release is called. One that is broken then, or
// in a transaction, is not used again.
func (h Handle) Acquire(ctx context.Context) (conn *stdlib.Conn, release func(), err error) {
	if h.SQL == nil {
		acquired, err := stdlib.GetPoolConnector(h.Pool).Connect(ctx)
		if err != nil {
			return nil, nil, err
		}
		return acquired.(*stdlib.Conn), func() { _ = acquired.Close() }, nil //nolint:forcetypeassert // see Connect
	}
	acquired, err := h.SQL.Conn(ctx)
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
