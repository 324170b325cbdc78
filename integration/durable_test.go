package integration

import (
	"crypto/rand"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
)

// A durable grant, lease or refund is flushed when its caller hears of it; one durable
// request makes the call durable; and a relaxed one does not wait. Others flush, too, so
// each is tried some times.
func TestDurableIsDurableAndRelaxedIsRelaxed(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy) {
		limit, slower := pglimit.Every(time.Microsecond), pglimit.Every(2*time.Microsecond)
		request := func(key string, l pglimit.Limit, d pglimit.Durability) rate.Request {
			return rate.Request{Limiter: "test", Key: key, Limit: l, Tokens: 1, Unit: 1, Durability: d}
		}
		take := func(requests ...rate.Request) {
			for _, d := range takeAll(t, pool, strategy, requests...) {
				if !d.Allowed {
					t.Errorf("%+v", d)
				}
			}
		}
		calls := map[string]func(pglimit.Durability){
			"one":            func(d pglimit.Durability) { take(request("a", limit, d)) },
			"several":        func(d pglimit.Durability) { take(request("a", limit, pglimit.Relaxed), request("b", limit, d)) },
			"several limits": func(d pglimit.Durability) { take(request("a", limit, d), request("c", slower, pglimit.Relaxed)) },
			"a refund": func(d pglimit.Durability) {
				// It writes only if there is something to give back.
				r := request("refunded", pglimit.Every(time.Hour), d)
				r.Key += rand.Text()
				r.Durability = pglimit.Relaxed
				at := takeAll(t, pool, strategy, r)[0].At
				r.Durability = d
				must(t, strategy.GiveBack(t.Context(), on(pool), []pglimit.Refund{{Request: r, At: at}}))
			},
		}
		if ahead := request("ahead", limit, pglimit.Durable); strategy.Check(&rate.Request{Limit: limit, Ahead: time.Second}) == nil {
			calls["ahead"] = func(d pglimit.Durability) {
				ahead.Durability, ahead.Ahead = d, time.Second
				take(ahead)
			}
		}
		if leaser, is := strategy.(pglimit.Leaser); is {
			calls["a lease"] = func(d pglimit.Durability) {
				_, err := leaser.Lease(t.Context(), on(pool), pglimit.LeaseRequest{
					Limiter: "test", Key: "leased", Limit: hours.WithBurst(1000), Tokens: 1, Share: 1, TTL: time.Hour, Durability: d,
				})
				must(t, err)
			}
		}
		// Whether more has been flushed, when the call returns, than was written before it.
		flushed := func(call func(pglimit.Durability), d pglimit.Durability) bool {
			before := query[string](t, pool, "select pg_current_wal_insert_lsn()::text")
			call(d)
			return query[bool](t, pool, "select pg_current_wal_flush_lsn() > $1::text::pg_lsn", before)
		}
		for name, call := range calls {
			for range 5 {
				if !flushed(call, pglimit.Durable) {
					t.Errorf("%s was durable, and is not flushed", name)
					break
				}
			}
			relaxed := false
			patience := soon(t, time.Minute)
			for n := 0; (n < 200 || patience.Err() == nil) && !relaxed; n++ { // others flush, too
				relaxed = !flushed(call, pglimit.Relaxed)
			}
			if !relaxed {
				t.Errorf("%s was relaxed, and is flushed each time", name)
			}
		}
	})
}
