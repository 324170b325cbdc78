package pglimit

import (
	"errors"

	"github.com/pglimit/ratelimit/internal/session"
)

// NewSQL is [New] on a *sql.DB, with the driver github.com/jackc/pgx/v5/stdlib or
// github.com/lib/pq. [Limiter.On] takes in a transaction or on a connection of yours.
//
// sqlx, Bun, GORM, ent and sqlc keep a *sql.DB, or embed one: sqlx.DB itself, DB of a bun.DB, what
// DB() of a gorm.DB or of ent's driver returns.
//
// A decision is one round trip with pgx, and with lib/pq if its connection string says
// binary_parameters=yes; else lib/pq prepares each statement, which makes two, and cannot be used
// behind PgBouncer in transaction mode. ForUpdateNowait needs eight with either, because
// database/sql has no pipelines. In a transaction of yours, a savepoint costs all but TokenBucket two
// more. Over database/sql, signs of life for the [Breaker] come from
// connections of db: leave room for them in MaxOpenConns. lib/pq does not say why a
// connection broke: when the server ends its sessions one decision fails, as unavailable, for each
// connection that is in use.
func NewSQL(db SQLDB, strategy Strategy, config Config) (*Limiter, error) {
	if isNil(db) {
		return nil, errors.New("pglimit: NewSQL needs a database, such as a *sql.DB")
	}
	return newLimiter(db, session.OnSQLDB(db), strategy, config)
}
