package integration

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// The short statements of the usual case decide as the functions do that are written
// out in full: for rows of any state, limits that changed, wants beyond the burst, and
// numbers that are as large as they may be.
func TestTheUsualCaseDecidesAsTheGeneralOne(t *testing.T) {
	t.Parallel()
	type scale struct{ token, refill, burst int64 } // see the strategies' scale
	limits := []scale{
		{100_000, 1, 20},                        // 10 per second
		{1_000_000, 3, 1_000_000},               // 3 per second
		{3_600_000_000, 1, 5},                   // 1 per hour
		{1, 1_000_000, 1_000_000_000_000},       // 10^12 per second
		{1_000_000, 999_983, 4_600_000_000_000}, // almost 2^62 parts
	}
	const rows = 60 // per limit, one in ten of which is not there
	for name, takes := range map[string]string{
		"one": `insert into answers
			select a.key, t.granted, t.debt, t.at_us
			from asked a, pglimit.token_bucket_take_v2(a.key, 'test', $1, $2, $3, a.want, true) t
			where a.token_parts = $1 and a.refill_parts = $2 and a.burst = $3`,
		"many": `insert into answers
			select a.keys[t.number], t.granted, t.debt, t.at_us
			from (
				select array_agg(key order by key) as keys, array_agg(want order by key) as wants, array_agg(number order by key) as lasts
				from (
					select *, row_number() over (order by key) as number from asked
					where token_parts = $1 and refill_parts = $2 and burst = $3
				) asked
			) a,
			pglimit.token_bucket_take_many_v2(a.keys, a.lasts, a.wants, a.wants, 'test', $1, $2, $3, true) f,
			unnest(f.numbers, f.grants, f.debts, f.ats_us) t(number, granted, debt, at_us)`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := newMigrated(t)
			execute(t, pool, `create table asked (key text collate "C" primary key, want bigint, token_parts bigint, refill_parts bigint, burst bigint)`)
			execute(t, pool, `create table answers (key text collate "C" primary key, granted bigint, debt bigint, at_us bigint)`)
			seed := uint64(time.Now().UnixNano())
			random := rand.New(rand.NewPCG(seed, 0))
			now := time.Now().UnixMicro()
			const hour = int64(3_600_000_000)
			pick := func(values ...int64) int64 { return values[random.IntN(len(values))] }
			var batch pgx.Batch
			for i, limit := range limits {
				for j := range rows {
					key := fmt.Sprint(i, " ", j)
					batch.Queue("insert into asked values ($1, $2, $3, $4, $5)",
						key, pick(1, 1, 2, limit.burst/2, limit.burst, limit.burst+1), limit.token, limit.refill, limit.burst)
					if j%10 == 0 {
						continue
					}
					was := limit
					if random.IntN(4) == 0 {
						was = limits[random.IntN(len(limits))]
					}
					capacity := was.token * was.burst
					at := pick(0, now-hour, now-1, now, now+hour)
					var leased, until int64
					if at <= now {
						leased, until = pick(0, 0, 1, min(was.burst, 1000), min(limit.burst, 1000)+1), pick(at+1, now+hour)
					}
					batch.Queue("insert into pglimit.token_bucket (key, limiter, debt, at_us, token_parts, refill_parts, burst, leased, leased_until_us) values ($1, 'test', $2, $3, $4, $5, $6, $7, $8)",
						key, pick(0, capacity, capacity-1, capacity-was.token, capacity-was.token+1, random.Int64N(capacity)), at, was.token, was.refill, was.burst, leased, until)
				}
			}
			if err := pool.SendBatch(t.Context(), &batch).Close(); err != nil {
				t.Fatal(err)
			}
			execute(t, pool, "create table before as select b, b.key from pglimit.token_bucket b")
			for _, limit := range limits {
				execute(t, pool, takes, limit.token, limit.refill, limit.burst)
			}
			// What it should have been, by the clock of the decision.
			for _, wrong := range texts(t, pool, `
				select format('%s asked for %s: %s granted of %s, owes %s instead of %s',
					coalesce(b::text, 'none'), a.want, r.granted, available, r.debt, due)
				from asked a
				left join answers r using (key)
				left join before using (key)
				cross join lateral (select
					pglimit.available_v1(b, r.at_us, a.token_parts, a.refill_parts, a.burst) as available,
					pglimit.settled_v1(b, r.at_us, a.token_parts, a.refill_parts, a.burst)
						+ least(pglimit.set_aside_v1(b, r.at_us) + r.granted, a.burst) * a.token_parts as due
				) x
				where r.granted is distinct from case when available >= a.want then a.want else 0 end or r.debt is distinct from due
					or r.at_us < (b).at_us`) {
				t.Error(wrong)
			}
			if t.Failed() {
				t.Log("seed", seed)
			}
			// And the row says the same.
			if n := query[int](t, pool, `select count(*) from answers r join pglimit.token_bucket b using (key)
				where r.granted > 0 and (b.debt + b.leased * b.token_parts, b.at_us) is distinct from (r.debt, r.at_us)`); n > 0 {
				t.Errorf("%d rows are not as their answer says", n)
			}
		})
	}
}
