// Package session adapts what speaks to Postgres to a [rate.Session]: a pool, a connection and a
// transaction, of pgx and of database/sql.
package session

import "github.com/pglimit/ratelimit/pglimit/rate"

// BusyConns is how many connections the pool of the session may have, if all of them are in use.
// Else, and if it is no pool, it is zero.
func BusyConns(session rate.Session) int {
	if s, ok := session.(interface{ busyConns() int }); ok {
		return s.busyConns()
	}
	return 0
}
