package integration

import (
	"slices"
	"testing"
)

// The view shows the burst of the rule that decides for a key, of whatever strategy; and nothing where the service's own
// limit decides, or no limit.
func TestBucketsShowTheBurstOfTheirRule(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	const past, soon = "'2000-01-01'", "now() + '1 day'"
	for _, rule := range []string{
		"'api', null, null, 'observe', '100/1h burst 1', true, null", "'api', null, null, 'enforce', '100/1h burst 50', true, null",
		"'api', 'own', null, 'enforce', '100/1h burst 10', true, null", "'api', 'other', null, 'enforce', '1000/month from 3 Europe/Berlin burst 7', true, null",
		"'api', 'soon', null, 'enforce', '100/1h burst 11', true, null", "'api', 'soon', null, 'enforce', '5/1h', true, " + soon,
		"'api', 'past', null, 'enforce', '100/1h burst 12', true, null", "'api', 'past', null, 'enforce', '6/1h', true, " + past,
		"'api', 'gone', null, 'enforce', '7/1h', true, " + past, "'api', 'disabled', null, 'enforce', '8/1h', false, null",
		"'api', null, 'bot:', 'enforce', '30/1h', true, null", "'api', null, 'bot:eu:', 'enforce', '31/1h', true, null", "'api', null, 'bot:eu:', 'enforce', '32/1h', true, " + soon,
		"'api', null, 'vip:', 'allow', null, true, null", "'api', 'denied', null, 'deny', null, true, null",
		"'off', null, null, 'enforce', '40/1h', true, null", "'off', 'own', null, 'enforce', '41/1h', true, null", "'off', null, null, 'off', null, true, null",
		"'keys', 'own', null, 'enforce', '42/1h', true, null", "'keys', null, null, 'places', '3', true, null", "'watched', null, null, 'observe', '9/1h', true, null",
		"'torn', 'a', null, 'enforce', 'no limit', true, null", "'torn', 'b', null, 'enforce', '99999999999999999999/1h', true, null", "'torn', 'c', null, 'enforce', '9223372036854775807/week', true, null",
		"'torn', 'd', null, 'enforce', '5', true, null", "'torn', 'e', null, 'enforce', '0/1h burst 5', true, null", "'torn', 'f', null, 'enforce', '5/1h burst', true, null",
	} {
		execute(t, pool, "begin; set local session_replication_role = replica; "+ // nothing checks them
			"insert into pglimit.limits (limiter, key, prefix, action, limit_text, enabled, expires_at, note, changed_by, changed_at) values ("+rule+", 'x', 'x', now()); commit")
	}
	bursts := map[string]int64{ // 0: it is not known
		"api k": 50, "api own": 10, "api other": 7, "api soon": 5, "api past": 12, "api gone": 50, "api disabled": 50, "api bot:7": 30, "api bot:eu:7": 32, "api bot:": 30,
		"api vip:7": 0, "api denied": 0, "api (observed) k": 0, "off k": 0, "off own": 0, "keys own": 42, "keys k": 0, "none k": 0, "watched k": 0,
		"torn a": 0, "torn b": 0, "torn c": 0, "torn d": 0, "torn e": 0, "torn f": 0,
	}
	for name := range bursts {
		for _, table := range []string{"token_bucket", "upsert", "for_update_nowait"} {
			execute(t, pool, "insert into pglimit."+table+" (limiter, key, full_ns, token_ns, at_ns) select r[1], r[2], 1, 1, 1 from regexp_match($1, '^(.*) (.*)$') r", name)
		}
	}
	for name, want := range bursts {
		got := query[[]int64](t, pool, "select array_agg(coalesce(burst, 0)) from pglimit.buckets where concat_ws(' ', limiter, key) = $1 and tokens_left is not distinct from burst", name)
		if !slices.Equal(got, []int64{want, want, want}) {
			t.Errorf("%s: %d, not %d", name, got, want)
		}
	}
	if n := query[int](t, pool, "select count(*) from pglimit.buckets where limiter = 'api' and key in ('k', 'own') and burst = 50"); n != 3 {
		t.Errorf("with conditions it has %d buckets", n)
	}
	execute(t, pool, "select pglimit.set_limit(null, action => 'off', note => 'x')")
	if n := query[int](t, pool, "select count(*) from pglimit.buckets where num_nonnulls(burst, tokens_left) > 0"); n != 0 {
		t.Errorf("with all limits off it shows %d bursts", n)
	}
}

// Of every row that the table takes, the view says the same tokens as pglimit.peek: also of an expired lease, of a
// window of the calendar, at another price, of a pause, and after the clock stepped back.
func TestBucketsShowTheTokensThatPeekSees(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	const now, largest = "1800000000000000000", "9223372036854775807"
	execute(t, pool, "create or replace function pglimit.clock_ns() returns bigint language sql volatile return "+now)
	execute(t, pool, `select pglimit.set_limit(l, l, note => 'x') from unnest('{10/s burst 50,3/1h,1000000000/s,1/day,1000000/day UTC,1/200s burst 20000000}'::text[]) l`)
	execute(t, pool, `insert into pglimit.token_bucket (limiter, key, full_ns, token_ns, at_ns, leased_ns, until_ns, paused_ns)
		select l.limiter, 'k' || row_number() over (), f, p, a, u.leased, u.until, case when random() < 0.2 then 1800000000500000000 end
		from pglimit.limits l, unnest('{1,`+now+`,1800000002300000000,1800003600000000000,`+largest+`}'::bigint[]) f,
			unnest('{1,100000000,1200000000000,`+largest+`}'::bigint[]) p,
			unnest('{1,1799999999000000000,`+now+`,1800000000009000000,1800000001000000000,`+largest+`}'::bigint[]) a,
			(values (null, null), (null, 1799999999500000000), (null, 1800000002000000000), (1000000000, 1800000002000000000),
				(300000000, 1799999999500000000), (`+largest+`, `+largest+`)) u (leased, until)
		where random() < 0.25 and (leased is not null or until is null or f >= until)`)
	rows := texts(t, pool, `select b.limiter || ': ' || concat_ws(' ', t, b.tokens_left) || ', not ' || p.remaining
		from pglimit.buckets b join pglimit.token_bucket t using (limiter, key) cross join lateral pglimit.peek(limiter, key) p
		where (b.tokens_left, b.burst) is distinct from (p.remaining, (select q.remaining from pglimit.peek(limiter, 'full') q))`)
	if len(rows) > 0 {
		t.Errorf("of %d rows it says:\n%s", query[int](t, pool, "select count(*) from pglimit.buckets"), rows[:min(len(rows), 20)])
	}
}
