// Package session adapts what speaks to Postgres to a [rate.Session]: a pool, a connection and a
// transaction, of pgx and of database/sql.
package session
