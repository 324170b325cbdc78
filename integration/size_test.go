package integration

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/pglimit/ratelimit/strategies"
)

// A key of token_bucket takes at most 160 bytes of the table and 80 of its index, whose pages have split in no order,
// also after the grants that follow the first: docs/operations.md says so.
//
// Not parallel: transactions of other tests keep old versions of rows from being pruned.
func TestBytesOfAKey(t *testing.T) {
	const keys = 5_000
	pool := newMigrated(t)
	timelessly(t, pool)
	names := make([]string, keys)
	for i := range names {
		names[i] = fmt.Sprintf("user:%06d", i)
	}
	for range 3 {
		rand.Shuffle(keys, func(i, j int) { names[i], names[j] = names[j], names[i] })
		for at := 0; at < keys; at += 50 {
			_, err := strategies.TokenBucket{}.Take(t.Context(), on(pool), asks(hours.WithBurst(10), names[at:at+50]...))
			must(t, err)
		}
	}
	heap := query[float64](t, pool, "select pg_table_size('pglimit.token_bucket')::float8 / $1", keys)
	index := query[float64](t, pool, "select pg_indexes_size('pglimit.token_bucket')::float8 / $1", keys)
	t.Logf("%.0f + %.0f bytes a key", heap, index)
	if heap > 160 || index > 80 {
		t.Errorf("a key takes %.0f bytes of the table and %.0f of its index; want at most 160 and 80", heap, index)
	}
}
