package integration

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
)

// A session keeps the plans that it made for a function while the table was small, and goes
// on with them when it has grown, until it is analyzed again: they must be good for that too.
func TestPlansMadeForASmallTableAreGoodForALargeOne(t *testing.T) {
	t.Parallel()
	const rows = 50_000
	pool := newMigrated(t)
	timelessly(t, pool)
	execute(t, pool, "alter table pglimit.token_bucket set (autovacuum_enabled = off)")
	session := newPool(t, databaseURL(pool), 1)
	limit := pglimit.PerHour(1000)
	strategy := strategies.TokenBucket{}

	names := func(prefix string) (names []string) {
		for i := range 10 {
			names = append(names, fmt.Sprint(prefix, i))
		}
		return names
	}
	ask := func(requests []rate.Request) error {
		_, err := taken(session, func() ([]pglimit.Decision, error) { return strategy.Take(t.Context(), on(session), requests) })
		return err
	}
	take := func(tokens, unit int64, names ...string) error {
		var requests []rate.Request
		for _, name := range names {
			requests = append(requests, rate.Request{Limiter: "test", Key: name, Limit: limit, Tokens: tokens, Unit: unit})
		}
		return ask(requests)
	}
	takeOfOne := func(tokens, unit int64, names ...string) error { // one key that has many limiters
		var requests []rate.Request
		for _, name := range names {
			requests = append(requests, rate.Request{Limiter: name, Key: "one", Limit: limit, Tokens: tokens, Unit: unit})
		}
		return ask(requests)
	}
	takeGroup := func(inTransaction bool, names ...string) error {
		group := asks(limit, names...)
		if !inTransaction {
			group[0].Impatient = true
			_, err := strategy.Take(t.Context(), on(session), grouped(group))
			return err
		}
		return pgx.BeginFunc(t.Context(), session, func(tx pgx.Tx) error {
			_, err := strategy.Take(t.Context(), on(tx), grouped(group))
			return err
		})
	}
	// Each way through the statements and functions, on keys of its own.
	ways := []struct {
		name string
		goes func(prefix string) error
	}{
		{"a new key", func(p string) error { return take(1, 1, p) }},
		{"a key", func(p string) error { return take(1, 1, p) }},
		{"new keys", func(p string) error { return take(1, 1, names(p)...) }},
		{"keys", func(p string) error { return take(1, 1, names(p)...) }},
		{"new keys in units", func(p string) error { return take(6, 2, names(p+" 2 ")...) }},
		{"new keys and others in units", func(p string) error { return take(6, 2, slices.Concat(names(p), names(p+" 3 "))...) }},
		{"a denial", func(p string) error { return take(1000, 1000, p) }},
		{"denials", func(p string) error { return take(1000, 1000, names(p)...) }},
		{"looks", func(p string) error { return take(0, 1, names(p)...) }},
		{"a look", func(p string) error { return take(0, 1, p) }},
		{"a refund", func(p string) error {
			r := rate.Request{Limiter: "test", Key: p, Limit: limit, Tokens: 1, Unit: 1}
			return strategy.GiveBack(t.Context(), on(session), []pglimit.Refund{{Request: r, At: time.Now()}})
		}},
		{"a reset", func(p string) error { return strategy.Reset(t.Context(), on(session), "test", p) }},
		{"new limiters of a key", func(p string) error { return takeOfOne(1, 1, names(p)...) }},
		{"limiters of a key", func(p string) error { return takeOfOne(1, 1, names(p)...) }},
		{"limiters of a key in units", func(p string) error { return takeOfOne(6, 2, names(p)...) }},
		{"denials by limiters of a key", func(p string) error { return takeOfOne(1000, 1000, names(p)...) }},
		{"a group of new keys", func(p string) error { return takeGroup(false, names(p)...) }},
		{"a group", func(p string) error { return takeGroup(false, names(p)...) }},
		{"a group whose rows are locked first", func(p string) error { return takeGroup(true, names(p)...) }},
		{"a lease", func(p string) error {
			ask := pglimit.LeaseRequest{Limiter: "test", Key: p, Limit: limit, Tokens: 10, Share: 4, TTL: time.Second}
			lease, err := strategy.Lease(t.Context(), on(session), ask)
			if err != nil {
				return err
			}
			ask.Settle = lease
			_, err = strategy.Lease(t.Context(), on(session), ask)
			return err
		}},
	}

	execute(t, pool, `insert into pglimit.token_bucket (key, limiter, full_ns, token_ns, at_ns) values ('a', 'test', 1, 1, 1)`)
	execute(t, pool, "vacuum analyze pglimit.token_bucket")
	for _, way := range ways {
		for i := range 8 { // the sixth time a plan may be kept
			if err := way.goes(fmt.Sprint("small ", i)); err != nil {
				t.Fatal(way.name, err)
			}
		}
	}
	execute(t, pool, `insert into pglimit.token_bucket (key, limiter, full_ns, token_ns, at_ns)
		select 'row ' || i, 'test', 1, 1, 1 from generate_series(1, $1::int) i
		union all select 'one', 'row ' || i, 1, 1, 1 from generate_series(1, $1::int) i`, rows)
	for _, way := range ways {
		before := tuplesRead(t, session, strategy)
		if err := way.goes("large"); err != nil {
			t.Fatal(way.name, err)
		}
		if read := tuplesRead(t, session, strategy) - before; read > 500 {
			t.Errorf("%s: %d rows and entries of the index were read, of %d", way.name, read, rows)
		}
	}
}

// tuplesRead is how many rows and entries of indexes the session has read of the
// strategy's table, whether it needed them or not.
func tuplesRead(t *testing.T, session *pgxpool.Pool, strategy strategies.Strategy) int64 {
	t.Helper()
	execute(t, session, "select pg_stat_force_next_flush()")
	return query[int64](t, session, `select seq_tup_read + (select coalesce(sum(idx_tup_read), 0)::bigint from pg_stat_user_indexes i where i.relid = t.relid)
		from pg_stat_user_tables t where schemaname = 'pglimit' and relname = $1`, strategy.Name())
}

// The same for the tables of IDs and blocks.
func TestPlansForIDsAndBlocksAreGoodForLargeTables(t *testing.T) {
	t.Parallel()
	const rows = 50_000
	pool := newMigrated(t)
	execute(t, pool, "alter table pglimit.token_bucket_answers set (autovacuum_enabled = off)")
	execute(t, pool, "alter table pglimit.token_bucket_blocks set (autovacuum_enabled = off)")
	session := newPool(t, databaseURL(pool), 1)
	goes := func(key string) {
		for _, id := range []string{"a", "a", "b"} { // granted, again, denied
			takeOnce(t, session, id, key, hours, time.Hour)
		}
		for range 2 { // counted, blocked
			takeOrBlock(t, session, key, hours, 1, hourly)
			takeOrBlock(t, session, key, hours, 0, hourly)
		}
	}
	execute(t, pool, "vacuum analyze")
	for i := range 8 { // the sixth time a plan may be kept
		goes(fmt.Sprint("small ", i))
	}
	execute(t, pool, `insert into pglimit.token_bucket_answers (key, limiter, id, answer, ttl_ns, until_ns)
		select 'large', 'test', 'row ' || i, '{1,1,1,1,1,0,0,1}', 1, 1 from generate_series(1, $1::int) i`, rows)
	execute(t, pool, `insert into pglimit.token_bucket_blocks (key, limiter, denials, since_ns, level, forget_ns, at_ns)
		select 'large', 'row ' || i, 1, 1, 1, 1, 1 from generate_series(1, $1::int) i`, rows)
	read := func() int64 {
		execute(t, session, "select pg_stat_force_next_flush()")
		return query[int64](t, session, `select sum(seq_tup_read + (select coalesce(sum(idx_tup_read), 0)::bigint from pg_stat_user_indexes i where i.relid = t.relid))::bigint
			from pg_stat_user_tables t where schemaname = 'pglimit' and relname like 'token\_bucket\__%'`)
	}
	before := read()
	goes("large")
	if n := read() - before; n > 500 {
		t.Errorf("%d rows and entries of the index were read, of %d", n, rows)
	}
}
