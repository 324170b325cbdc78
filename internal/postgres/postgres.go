// Package postgres is how everything here speaks to Postgres: the sessions on a pool, a connection or a transaction,
// of pgx or of database/sql; what an error means ([Explain]); after which one a call is made again ([Again]); and
// the transaction of a call.
package postgres

import (
	"database/sql"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// DB is what an application has: a pool of pgx, or a *sql.DB.
type DB interface{ *pgxpool.Pool | *sql.DB }

// On returns a session that sends each call on a free connection of db; nil, if db is nil.
func On[D DB](db D) rate.Session {
	switch db := any(db).(type) {
	case *pgxpool.Pool:
		if db != nil {
			return OnPool(db)
		}
	case *sql.DB:
		if db != nil {
			return OnSQLDB(db)
		}
	}
	return nil
}

// DBOf returns the Pool or the *sql.DB of a session of [On].
func DBOf(session rate.Session) any {
	switch db := session.(*pooled).connections.(type) { //nolint:forcetypeassert // see On
	case pgxPool:
		return db.Pool
	case sqlPool:
		return db.db
	}
	return nil
}
