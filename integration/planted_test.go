package integration

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
)

// Somebody planted operators for mixed types and functions named like Postgres's own in
// public, and the role has public first in its search_path: none is called, whatever is
// asked.
func TestWhatOthersPlantedIsNotCalled(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	plant(t, pool)
	holds := func(t *testing.T, strategy strategies.Strategy) {
		t.Helper()
		conn, err := pgx.Connect(t.Context(), with(databaseURL(pool), "search_path", "public,pg_catalog"))
		must(t, err)
		defer func() { _ = conn.Close(t.Context()) }()
		if _, err := conn.Exec(t.Context(), "select 1::numeric * 1::integer"); err == nil || !strings.Contains(err.Error(), "planted") {
			t.Fatalf("what was planted is not in the way: %v", err)
		}
		limit := pglimit.Every(time.Hour)
		if strategy.Check(&rate.Request{Limit: hours.WithBurst(5)}) == nil {
			limit = limit.WithBurst(5)
		}
		ask := func(key string, tokens, unit int64, l pglimit.Limit) rate.Request {
			return rate.Request{Limiter: "test", Key: key, Limit: l, Tokens: tokens, Unit: unit}
		}
		slower := limit
		slower.Period *= 2
		for _, requests := range [][]rate.Request{
			{ask("k", 1, 1, limit)}, {ask("k", 1, 1, limit)}, {ask("k", 0, 1, limit)}, {ask("k", limit.Burst, 1, limit)}, {ask("k", 1, 1, limit)},
			{ask("l", 1, 1, limit), ask("k", 1, 1, limit), ask("m", limit.Burst, 1, limit)}, {ask("l", 1, 1, slower)}, {ask("l", 1, 1, limit), ask("m", 0, 1, slower)},
		} {
			for i := range requests { // with no burst
				requests[i].Tokens = min(requests[i].Tokens, requests[i].Limit.Burst)
			}
			takeAll(t, conn, strategy, requests...)
		}
		// A row that is ahead of the clock is moved, and one of another limit is read.
		if strategy.Name() == "exclusion_range" {
			execute(t, pool, "update pglimit.exclusion_range set during = pg_catalog.tstzrange(pg_catalog.lower(during) + interval '1 day', pg_catalog.upper(during) + interval '1 day')")
		} else {
			execute(t, pool, "update pglimit."+strategy.Name()+" set full_ns = full_ns + 86400000000000, at_ns = at_ns + 86400000000000")
		}
		takeAll(t, conn, strategy, ask("k", 1, 1, limit))
		d := takeAll(t, conn, strategy, ask("n", 1, 1, limit))[0]
		if err := strategy.GiveBack(t.Context(), on(conn), []pglimit.Refund{{Request: ask("n", 1, 1, limit), At: d.At}}); err != nil {
			t.Errorf("GiveBack: %v", err)
		}
		if err := strategy.Reset(t.Context(), on(conn), "test", "n"); err != nil {
			t.Errorf("Reset: %v", err)
		}
		if _, err := strategy.Sweep(t.Context(), on(conn), 0, 1000); err != nil {
			t.Errorf("Sweep: %v", err)
		}
		if leaser, is := strategy.(pglimit.Leaser); is {
			r := pglimit.LeaseRequest{Limiter: "test", Key: "leased", Limit: limit, Tokens: 3, Share: 1, TTL: time.Minute}
			for range 2 {
				lease, err := leaser.Lease(t.Context(), on(conn), r)
				if err != nil {
					t.Errorf("Lease: %v", err)
				}
				r.Settle, r.Spent = lease, 1
			}
			takeAll(t, conn, strategy, ask("leased", 1, 1, slower))
		}
		if strategy.Check(&rate.Request{Limit: limit, ID: "id"}) == nil {
			r := ask("once", 1, 1, limit)
			r.ID, r.IDTTL = "id", time.Minute
			for range 2 {
				takeAll(t, conn, strategy, r)
			}
		}
		if strategy.Check(&rate.Request{Limit: limit, Block: &hourly}) == nil {
			for range 10 {
				for tokens := range int64(2) {
					r := ask("blocked", tokens, 1, limit)
					r.Block = &hourly
					takeAll(t, conn, strategy, r)
				}
			}
		}
		if able, is := strategy.(pglimit.AllResetter); is {
			if _, err := able.ResetAll(t.Context(), on(conn), "test"); err != nil {
				t.Errorf("ResetAll: %v", err)
			}
		}
		if _, err := conn.Exec(t.Context(), "select * from pglimit.buckets; select * from pglimit.ranges; select * from pglimit.blocks; select * from pglimit.windows; select * from pglimit.warm_ups"); err != nil {
			t.Errorf("the views: %v", err)
		}
	}
	for _, strategy := range append(strategies.All(), strategies.SlidingLog{CountDenied: true, MinInterval: time.Microsecond}) {
		t.Run(strategy.Name(), func(t *testing.T) {
			t.Parallel()
			holds(t, strategy)
		})
	}
}

// plant operators of all pairs of types that pg_catalog has no exact operator for, and
// functions. All raise.
func plant(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	execute(t, pool, `do $plant$
		declare
			a text; b text; op text; result text; name text;
		begin
			foreach a in array array['integer', 'bigint', 'numeric', 'smallint', 'double precision', 'text', 'varchar', 'name', 'tid', 'timestamptz', 'interval', 'tstzrange', 'bigint[]', 'text[]'] loop
			foreach b in array array['integer', 'bigint', 'numeric', 'smallint', 'double precision', 'text', 'varchar', 'name', 'tid', 'timestamptz', 'interval', 'tstzrange', 'bigint[]', 'text[]'] loop
				foreach op in array array['+', '-', '*', '/', '=', '<>', '<', '<=', '>', '>=', '&&', '||'] loop
					continue when exists (
						select from pg_catalog.pg_operator o
						where o.oprname = op and o.oprleft = a::regtype and o.oprright = b::regtype and o.oprnamespace = 'pg_catalog'::regnamespace);
					result := case when op in ('+', '-', '*', '/', '||') then a else 'boolean' end;
					name := 'planted_' || md5(a || b || op);
					execute format('create function public.%I(%s, %s) returns %s language plpgsql as $$ begin raise exception ''planted: %s %s %s''; end $$', name, a, b, result, a, op, b);
					execute format('create operator public.%s (leftarg = %s, rightarg = %s, function = public.%I)', op, a, b, name);
				end loop;
			end loop;
			end loop;
			foreach a in array array['format(text, bigint)', 'upper(tstzrange)', 'lower(tstzrange)', 'div(numeric, bigint)', 'div(bigint, bigint)', 'tstzrange(timestamptz, timestamptz)', 'set_config(text, text, boolean)', 'pg_relation_size(text)', 'current_setting(text)', 'max(timestamptz)', 'clock_timestamp()', 'date_part(text, timestamptz)', 'cardinality(bigint[])', 'cardinality(text[])', 'array_fill(boolean, integer[])', 'ceil(numeric)', 'to_timestamp(numeric)', 'isfinite(timestamptz)', 'isfinite(interval)', 'format(text, text)', 'to_json(text)', 'btrim(text)', 'regexp_replace(text, text, text)', 'regexp_replace(text, text, text, text)', 'regexp_matches(text, text, text)', 'split_part(text, text, integer)', 'strpos(text, text)', 'substr(text, integer)', 'replace(text, text, text)', 'octet_length(text)', 'length(text)', 'trunc(double precision)', 'num_nonnulls(bigint, interval, bigint)'] loop
				execute 'create function public.' || a || ' returns text language plpgsql as $$ begin raise exception ''planted: ' || a || '''; end $$';
			end loop;
		end
		$plant$`)
}
