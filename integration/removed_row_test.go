package integration

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// A transaction with repeatable reads sees a row that was removed meanwhile beside the one that it has made itself. It
// decides by its own. (Strategies that lock before they insert fail with 40001.)
func TestASnapshotThatSeesARemovedRow(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	for _, strategy := range []strategies.Strategy{strategies.Upsert{}, strategies.SlidingWindow{}, strategies.SlidingLog{}} {
		limit := pglimit.Per(10, time.Hour)
		request := func(n int64) pglimit.Request {
			return pglimit.Request{Limiter: "test", Key: strategy.Name(), Limit: limit, Tokens: n, Unit: n}
		}
		takeAll(t, pool, strategy, request(8))
		tx, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
		must(t, err)
		if query[int64](t, tx, "select 1") != 1 {
			t.Fatal("a snapshot is taken")
		}
		must(t, strategy.(pglimit.Resetter).Reset(t.Context(), on(pool), "test", strategy.Name())) //nolint:forcetypeassert // all can
		for _, want := range []struct{ n, left int64 }{{2, 8}, {2, 6}, {6, 0}} {
			decisions, err := strategy.Take(t.Context(), on(tx), []pglimit.Request{request(want.n)})
			must(t, err)
			if d := decisions[0]; !d.Allowed || d.Remaining != want.left {
				t.Errorf("%s: %+v, want %d left", strategy.Name(), d, want.left)
			}
		}
		must(t, tx.Commit(t.Context()))
		if d := takeAll(t, pool, strategy, request(1))[0]; d.Allowed {
			t.Errorf("%s: eleven of ten: %+v", strategy.Name(), d)
		}
	}
}
