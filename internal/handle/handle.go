// Package handle turns what an application has, a pool of pgx or a *sql.DB, into what is needed of it.
package handle

import (
	"database/sql"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pglimit/ratelimit/internal/session"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// DB is a pool of pgx, or a *sql.DB.
type DB interface{ *pgxpool.Pool | *sql.DB }

// Handle is one of the two; the other is nil.
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

// Session sends each call on a free connection.
func (h Handle) Session() rate.Session {
	if h.db != nil {
		return session.OnSQLDB(h.db)
	}
	return session.OnPool(h.pool)
}

// SQL is a *sql.DB, whose connections are those of the pool if there is one, until release is called.
func (h Handle) SQL() (db *sql.DB, release func()) {
	if h.db != nil {
		return h.db, func() {}
	}
	db = stdlib.OpenDBFromPool(h.pool)
	return db, func() { _ = db.Close() }
}
