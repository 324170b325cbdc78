package session

import (
	"fmt"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// ErrSharded is the error of a call about several keys on a session that is not marked as Sharded, where it should be.
var ErrSharded = fmt.Errorf("%w: Citus distributes the tables: ask for each key by itself", rate.ErrNothingTaken)

// sharded is a session where the tables are distributed.
type sharded struct{ rate.Session }

// Sharded marks a session where Citus distributes the tables: a call there must be about keys of one shard.
func Sharded(s rate.Session) rate.Session { return sharded{s} }

// Sharded is what a strategy looks for.
func (sharded) Sharded() {}
