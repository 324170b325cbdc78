package integration

import (
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// What a process that died had leased flows back, also while others go on leasing.
func TestALeaseThatNobodySettlesEndsThoughOthersGoOn(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	limit := pglimit.Every(time.Millisecond).WithBurst(100) // full again in 100 ms
	ask := func(tokens int64, settle pglimit.Lease) pglimit.Lease {
		l, err := (strategies.TokenBucket{}).Lease(t.Context(), pool, pglimit.LeaseRequest{
			Limiter: "test", Key: "k", Limit: limit, Tokens: tokens, Share: 1, TTL: 200 * time.Millisecond, Settle: settle,
		})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	dead := ask(60, pglimit.Lease{}) // never settled
	end := dead.Until.Add(2 * time.Second)
	mine := ask(1, pglimit.Lease{})
	for mine.At.Before(end) {
		mine = ask(1, mine)
	}
	if mine.Left.Remaining < 90 {
		t.Errorf("%d left two seconds after a lease expired: it is still set aside", mine.Left.Remaining)
	}
}
