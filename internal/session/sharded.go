package session

import "github.com/pglimit/ratelimit/pglimit/rate"

// sharded is a session where the tables are distributed.
type sharded struct{ rate.Session }

// Sharded marks a session where Citus distributes the tables: a call there must be about keys of one shard.
func Sharded(s rate.Session) rate.Session { return sharded{s} }

// Sharded is what a strategy looks for.
func (sharded) Sharded() {}
