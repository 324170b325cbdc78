package integration

import (
	"testing"
	"time"

	"github.com/pglimit/ratelimit/strategies"
)

// A call that needs a bucket which another transaction is making waits for it, as one for
// that bucket alone does, however long it takes.
func TestACallWaitsForABucketInTheMaking(t *testing.T) {
	t.Parallel()
	pool, s := newMigrated(t), strategies.TokenBucket{}
	limit := hours.WithBurst(100)
	take(t, pool, s, "old", limit)
	holder := session(t, pool)
	take(t, holder, s, "new", limit)
	done := call(t, pool, asks(limit, "new", "old"))
	passes(t, pool, 3*time.Second)
	commit(t, holder)
	<-done
}
