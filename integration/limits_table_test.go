package integration

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/ratelimit/limits"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// What is no rule cannot be in the table, whoever writes it. Services can read whatever is: one row that they cannot
// read would keep them from seeing any change.
func TestTheTableOfLimitsHasNothingButRules(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	for _, row := range []struct{ values, want string }{ // of limiter, key, prefix, action, limit_text, max_wait, note, expires_at
		{`'api', null, null, 'enforce', '5/s', null, 'why', null`, ""},
		{`'api', 'k', null, 'enforce', '5/s burst 9', '999999%', 'why', '2261-12-31'`, ""},
		{`'api', 'l', null, 'enforce', '1/h', '1752000h', 'why', null`, ""},
		{`'api', 'm', null, 'enforce', '1/h', 'day', 'why', '1970-01-02'`, ""},
		{`'api', null, 'p', 'allow', null, null, 'why', null`, ""},
		{`'api', null, 'q', 'deny', null, null, 'why', null`, ""},
		{`'api', null, null, 'observe', '5/s', null, 'why', null`, ""},
		{`'api', null, null, 'off', null, null, 'why', null`, ""},
		{`null, null, null, 'off', null, null, 'why', null`, ""},
		{`'api', null, null, 'places', '5', null, 'why', null`, ""},
		{`'api', 'k', null, 'places', '1000000000000000', null, 'why', '2261-12-31'`, ""},
		{`'api', null, null, 'places', '6', null, 'why again', null`, "23505"},
		{`'api', 'a', null, 'places', '1000000000000001', null, 'why', null`, "23514"},
		{`'api', 'a', null, 'places', '0', null, 'why', null`, "23514"},
		{`'api', 'a', null, 'places', '5/1m', null, 'why', null`, "23514"},
		{`'api', 'a', null, 'places', '-1', null, 'why', null`, "23514"},
		{`'api', 'a', null, 'places', e'5\n', null, 'why', null`, "23514"},
		{`'api', 'a', null, 'places', '1e3', null, 'why', null`, "23514"},
		{`'api', 'a', null, 'places', null, null, 'why', null`, "23514"},
		{`'api', 'a', null, 'places', '5', '5s', 'why', null`, "22023"},
		{`null, null, null, 'places', '5', null, 'why', null`, "23514"},
		{`'', null, null, 'places', '5', null, 'why', null`, "22023"},
		{`'api', null, null, 'deny', null, null, 'why', null`, "23505"}, // there is one
		{`'api', null, null, 'off', null, null, 'why again', null`, "23505"},
		{`null, null, null, 'off', null, null, 'why again', null`, "23505"},
		{`null, null, null, 'deny', null, null, 'why', null`, "23514"},
		{`'', null, null, 'deny', null, null, 'why', null`, "22023"},
		{`'api', '', null, 'deny', null, null, 'why', null`, "22023"},
		{`'api', null, '', 'deny', null, null, 'why', null`, "23514"},
		{`'api', null, repeat('k', 1025), 'deny', null, null, 'why', null`, "23514"},
		{`'api', repeat('k', 1025), null, 'deny', null, null, 'why', null`, "22023"},
		{`'api', 'a', 'a', 'deny', null, null, 'why', null`, "23514"},
		{`'api', 'a', null, 'off', null, null, 'why', null`, "23514"},
		{`'api', 'a', null, 'ban', null, null, 'why', null`, "23514"},
		{`'api', 'a', null, 'deny', '5/s', null, 'why', null`, "23514"},
		{`'api', 'a', null, 'enforce', null, null, 'why', null`, "23514"},
		{`'api', 'a', null, 'enforce', '5', null, 'why', null`, "22023"},
		{`'api', 'a', null, 'enforce', '0/s', null, 'why', null`, "22023"},
		{`'api', 'a', null, 'enforce', '5/s', '0%', 'why', null`, "22023"},
		{`'api', 'a', null, 'enforce', '5/s', '50', 'why', null`, "22023"},
		{`'api', 'a', null, 'enforce', '5/s', '-5s', 'why', null`, "22023"},
		{`'api', 'a', null, 'enforce', '5/s', '1.5h', 'why', null`, "22023"},
		{`'api', 'a', null, 'enforce', '5/s', '1m30s', 'why', null`, "22023"},
		{`'api', 'a', null, 'enforce', '5/s', '5S', 'why', null`, "22023"},
		{`'api', 'a', null, 'enforce', '5/s', '5s ', 'why', null`, "22023"},
		{`'api', 'a', null, 'enforce', '5/s', '5 s', 'why', null`, "22023"},
		{`'api', 'a', null, 'enforce', '5/s', 'month', 'why', null`, "22023"},
		{`'api', 'a', null, 'enforce', '5/s', '1752001h', 'why', null`, "22023"}, // more than 200 years
		{`'api', 'a', null, 'observe', '5/s', '5s', 'why', null`, "22023"},
		{`'api', 'a', null, 'deny', null, null, '', null`, "23514"},
		{`'api', 'a', null, 'deny', null, null, e' \n', null`, "23514"},
		{`'api', 'a', null, 'deny', null, null, null, null`, "23502"},
		{`'api', 'a', null, 'deny', null, null, repeat('y', 1001), null`, "23514"},
		{`'api', 'a', null, 'deny', null, null, 'why', 'infinity'`, "23514"},
		{`'api', 'a', null, 'deny', null, null, 'why', '12026-01-01'`, "23514"},
		{`repeat('a', 118), null, null, 'observe', '5/s', null, 'why', null`, "23514"},
		{`repeat('a', 117), null, null, 'observe', '5/s', null, 'why', null`, ""},
		{`repeat('a', 129), null, null, 'enforce', '5/s', null, 'why', null`, "22023"},
		{`'api', 'a', null, 'enforce', '5/s', null, 'why', null), ('api', 'a', null, 'deny', null, null, 'why', null`, "23505"},
	} {
		_, err := pool.Exec(t.Context(), `insert into pglimit.limits (limiter, key, prefix, action, limit_text, max_wait, note, expires_at) values (`+row.values+`)`)
		if row.want != "" && sqlState(err) != row.want || row.want == "" && err != nil {
			t.Errorf("%s: %v, want SQLSTATE %q", row.values, err, row.want)
		}
	}
	read := pglimit.LimitsFrom(pool, pglimit.LimitsConfig{})
	limiter := newLimiter(t, pool, strategies.TokenBucket{}, pglimit.Config{Name: "api", Limit: hours, Limits: read})
	_, err := limiter.Allow(t.Context(), "k")
	must(t, err)
	if status := read.Status(); status.Err != nil || status.Version == 0 {
		t.Errorf("%+v", status)
	}
}

// A row that cannot be read or kept, as after an upgrade or when a time zone has gone, fails the requests for which it
// holds, in Go and in SQL, and is named. A process that starts reads all others. It can be disabled and deleted.
func TestARowThatCannotBeReadFailsItsOwnRequests(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	execute(t, pool, `select pglimit.set_limit('api', '5/1h', note => 'default')`)
	execute(t, pool, `do $$ begin
		alter table pglimit.limits disable trigger limit_changes;
		insert into pglimit.limits (limiter, key, action, limit_text, note, changed_by, changed_at) values
			('api', 'torn', 'enforce', '5 a minute', 'why', 'ann', now()), ('api', 'gone', 'enforce', '5/day Nowhere/City', 'why', 'ann', now()),
			('api', 'fine', 'observe', '5/day Nowhere/City', 'why', 'ann', now()), ('api', 'good', 'observe', '5 a minute', 'why', 'ann', now());
		alter table pglimit.limits enable trigger limit_changes;
	end $$`)
	var log lines
	read := pglimit.LimitsFrom(pool, pglimit.LimitsConfig{Every: 20 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	limiter := newLimiter(t, pool, strategies.TokenBucket{}, pglimit.Config{Name: "api", Limit: hours, Limits: read, OnError: pglimit.FailOpen})
	keys := []string{"torn", "fine", "gone", "good", "other"}
	why := map[string]string{"torn": `row 2 of pglimit.limits: limit "5 a minute": it must be tokens/period`, "gone": "row 3 of pglimit.limits: "}
	requests := make([]pglimit.Request, len(keys))
	for i, key := range keys {
		requests[i] = pglimit.Request{Key: key, Tokens: 1}
	}
	decisions, err := limiter.DoEach(t.Context(), requests...)
	for i, key := range keys {
		_, alone := limiter.Allow(t.Context(), key)
		_, inSQL := pool.Exec(t.Context(), "select pglimit.allow('api', $1)", key)
		if why[key] == "" {
			if alone != nil || inSQL != nil || len(decisions) > i && decisions[i].Limit.Burst != 5 {
				t.Errorf("%s: %v, %v, %+v", key, alone, inSQL, decisions)
			}
			continue
		}
		var of *pglimit.RuleError
		if !errors.As(alone, &of) || of.Rule.Key != key || !strings.HasPrefix(alone.Error(), "pglimit: "+why[key]) {
			t.Errorf("%s: %v", key, alone)
		}
		if sqlState(inSQL) != "55000" || !strings.Contains(inSQL.Error(), why[key]) {
			t.Errorf("%s in SQL: %v", key, inSQL)
		}
	}
	if !errors.As(err, new(*pglimit.RuleError)) {
		t.Errorf("%+v, %v", decisions, err)
	}
	table := limits.New(pool)
	status := read.Status()
	if len(status.Failing) != 3 || status.Err != nil || status.Rules != 5 || limiter.Stats().LimitsFailing != 3 { // good, whose rule is observed, too
		t.Errorf("%+v", status)
	}
	said := strings.Join(log.all(), "")
	for _, row := range []string{"row=2", "row=3", "row=5"} {
		if strings.Count(said, row) != 1 {
			t.Errorf("%s is not said once: %s", row, said)
		}
	}
	for key := range why {
		explained, err := table.Explain(t.Context(), "api", key)
		if err != nil || explained[0].State != limits.Fails || explained[0].Why == "" || explained[1].State != limits.Overruled {
			t.Errorf("%s: %+v, %v", key, explained, err)
		}
		rule := limits.Rule{Limiter: "api", Key: key, Note: "it is broken"}
		_, err = table.Disable(t.Context(), rule)
		must(t, err)
		if _, err = table.Enable(t.Context(), rule); !errors.Is(err, limits.ErrNoRule) {
			t.Errorf("%s is enabled again: %v", key, err)
		}
		until(t, "it fails nobody", func() bool { d, err := limiter.Allow(t.Context(), key); return err == nil && d.Limit.Burst == 5 })
		if removed, err := table.Delete(t.Context(), rule); err != nil || removed == nil {
			t.Errorf("%+v, %v", removed, err)
		}
	}
}

// A rule that expires lies over the permanent one for the same keys: no change of one loses the other.
func TestATemporaryRuleLeavesThePermanentOne(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	const later = ", expires_at => '2100-01-01'"
	const end = "update pglimit.limits set expires_at = '2000-01-01', note = 'it has ended' where temporary"
	for _, step := range []struct {
		sql  string
		want string // what holds, of the rules for all: live, off; and the places
	}{
		{"set_limit('api', '2/1h', note => 'n')", "2/1h - -"},
		{"set_limit('api', '500/1h', note => 'n'" + later + ")", "500/1h - -"},
		{"set_limit('api', '3/1h', note => 'n')", "500/1h - -"},
		{"enable_limit('api', false, note => 'n')", "3/1h - -"},
		{"enable_limit('api', true, note => 'n')", "500/1h - -"},
		{end, "3/1h - -"},
		{"enable_limit('api', false, note => 'n')", "- - -"}, // the permanent one
		{"enable_limit('api', true, note => 'n')", "3/1h - -"},
		{"set_limit('api', action => 'deny', note => 'n'" + later + ")", "deny - -"},
		{"delete_limit('api', note => 'n')", "3/1h - -"},
		{"set_limit('api', action => 'off', note => 'n')", "3/1h off -"},
		{"set_limit('api', action => 'off', note => 'n'" + later + ")", "3/1h off -"},
		{end, "3/1h off -"},
		{"delete_limit('api', kind => 'off', note => 'n')", "3/1h - -"},
		{"set_limit('api', '5', action => 'places', note => 'n'), pglimit.set_limit('api', '1', action => 'places', note => 'n'" + later + ")", "3/1h - 1"},
		{"set_limits('[{\"limiter\": \"api\", \"limit_text\": \"4/1h\"}, {\"limiter\": \"api\", \"limit_text\": \"9/1h\", \"expires_at\": \"2100-01-01\"}]', note => 'n')", "9/1h - 1"},
		{"set_limits('[{\"limiter\": \"api\", \"limit_text\": \"4/1h\"}, {\"limiter\": \"api\", \"limit_text\": \"5\", \"action\": \"places\"}]', prune => true, note => 'n')", "4/1h - 5"},
		{"delete_limit('api', note => 'n')", "- - 5"},
	} {
		if step.sql != end {
			step.sql = "select pglimit." + step.sql
		}
		execute(t, pool, step.sql)
		got := query[string](t, pool, `select format('%s %s %s',
			coalesce((select coalesce((rule).limit_text, (rule).action) from pglimit.explain_limit('api', 'k') where (rule).kind = 'live' and state in ('holds', 'overruled') limit 1), '-'),
			coalesce((select 'off' from pglimit.explain_limit('api', 'k') where (rule).kind = 'off' and state = 'holds'), '-'), coalesce(pglimit.places_of('api', 'k')::text, '-'))`)
		if got != step.want {
			t.Errorf("%s: %s, want %s", step.sql, got, step.want)
		}
		if strings.Contains(step.want, "/1h -") {
			if left := query[string](t, pool, "select remaining + 1 || '/1h' from pglimit.allow('api', gen_random_uuid()::text)"); left != strings.Fields(step.want)[0] {
				t.Errorf("%s: pglimit.allow has %s", step.sql, left)
			}
		}
	}
}

// However a limit is changed, the history says what it was, what it is, who did it and why, and the change is read.
func TestEveryChangeOfALimitIsRecorded(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	me := query[string](t, pool, "select session_user::text")
	seen := query[string](t, pool, "select (pglimit.limits_since('')::json ->> 'stamp')")
	for _, step := range []struct {
		sql  string
		want []string // before -> after: by, note
	}{
		{`select pglimit.set_limit('api', '5/s', note => 'a', by => 'ann')`, []string{"- -> 5/s: ann, a"}},
		{`select pglimit.set_limit('api', '6/s', note => 'b')`, []string{"5/s -> 6/s: " + me + ", b"}},
		{`insert into pglimit.limits (limiter, key, limit_text, note) values ('api', 'k', '1/s', 'c'), ('api', 'l', '1/s', 'd')`,
			[]string{"- -> 1/s: " + me + ", c", "- -> 1/s: " + me + ", d"}},
		{`update pglimit.limits set limit_text = '2/s', note = 'e', changed_by = 'nobody', changed_at = '2000-01-01' where key in ('k', 'l')`,
			[]string{"1/s -> 2/s: " + me + ", e", "1/s -> 2/s: " + me + ", e"}},
		{`set local pglimit.by = 'bob'; set local pglimit.note = 'f'; delete from pglimit.limits where key = 'l'`, []string{"2/s -> -: bob, f"}},
		{`delete from pglimit.limits where key = 'l'`, nil},
		{`insert into pglimit.limits (limiter, key, limit_text, note) values ('api', 'k', '3/s', 'g')
			on conflict on constraint limits_match do update set limit_text = excluded.limit_text, note = excluded.note`, []string{"2/s -> 3/s: " + me + ", g"}},
		{`merge into pglimit.limits l using (values ('k')) v (key) on l.key = v.key when matched then update set limit_text = '4/s', note = 'h'`,
			[]string{"3/s -> 4/s: " + me + ", h"}},
		{`select pglimit.enable_limit('api', false, key => 'k', note => 'i', by => 'ann')`, []string{"4/s -> 4/s: ann, i"}},
		{`select pglimit.delete_limit('api', key => 'k', note => 'j', by => 'ann')`, []string{"4/s -> -: ann, j"}},
		{`select pglimit.set_limits('[{"limiter": "api", "limit_text": "6/s", "note": "b"}, {"limiter": "api", "key": "m", "limit_text": "7/s"}]', note => 'k', by => 'cat')`,
			[]string{"- -> 7/s: cat, k"}}, // the first is so already
		{`select pglimit.set_limits('[{"limiter": "api", "limit_text": "8/s", "note": "l"}]', prune => true, note => 'm', by => 'cat', dry_run => true)`, nil},
		{`select pglimit.set_limits('[{"limiter": "api", "limit_text": "8/s", "note": "l"}]', prune => true, note => 'm', by => 'cat')`,
			[]string{"7/s -> -: cat, m", "6/s -> 8/s: cat, l"}},
		{`update pglimit.limits set limit_text = '9/s', note = 'l'`, []string{"8/s -> 9/s: " + me + ", l"}}, // the same again
		{`set local pglimit.by = 'bob'; set local pglimit.note = 'n'; update pglimit.limits set limit_text = '8/s';
			select pglimit.set_limit('api', '7/s', note => 'o'), pglimit.set_limit('api', '6/s', note => 'p', by => 'ann'), pglimit.set_limits('[]', by => 'cat', note => 'q'),
				pglimit.enable_limit('api', false, note => 'r', by => 'eve'), pglimit.delete_limit('api', note => 's', by => 'dan'), pglimit.set_limit('api', '1/s', note => 't');
			update pglimit.limits set limit_text = '2/s'`,
			[]string{
				"9/s -> 8/s: bob, n", "8/s -> 7/s: bob, o", "7/s -> 6/s: ann, p", "6/s -> 6/s: eve, r", "6/s -> -: dan, s", "- -> 1/s: bob, t", "1/s -> 2/s: bob, n",
			}},
		{`set local pglimit.note = ' '; update pglimit.limits set limit_text = '9/s'; delete from pglimit.limits`,
			[]string{"2/s -> 9/s: " + me + ", (no reason given)", "9/s -> -: " + me + ", (no reason given)"}},
	} {
		last := query[int64](t, pool, "select coalesce(max(id), 0) from pglimit.limits_history")
		_, err := pool.Exec(t.Context(), "begin; "+step.sql+"; commit", pgx.QueryExecModeSimpleProtocol)
		must(t, err)
		got := texts(t, pool, `select format('%s -> %s: %s, %s', coalesce(before ->> 'limit_text', '-'), coalesce(after ->> 'limit_text', '-'), by, note)
			from pglimit.limits_history where id > $1 and role = session_user and at > now() - interval '1 minute' and at <= now()
				and (after is null or after ->> 'changed_by' = by and after ->> 'note' = note) order by id`, last)
		if !slices.Equal(got, step.want) {
			t.Errorf("%s: the history has %q, want %q", step.sql, got, step.want)
		}
		if changed := query[*string](t, pool, "select a ->> 'stamp' from (select pglimit.limits_since($1)::json) since(a) where a -> 'rules' is not null union all select null limit 1", seen); (changed != nil) != (len(step.want) > 0) {
			t.Errorf("%s: is read: %t", step.sql, changed != nil)
		} else if changed != nil {
			seen = *changed
		}
	}
	_, err := pool.Exec(t.Context(), "truncate pglimit.limits")
	wantCode(t, err, "55000")
	// The history of a key would miss that its rule became one for another key.
	execute(t, pool, `select pglimit.set_limit('api', '5/s', key => 'k', note => 'why')`)
	for _, set := range []string{"limiter = 'web'", "key = 'other'", "key = null", "key = null, prefix = 'k'"} {
		_, err := pool.Exec(t.Context(), "update pglimit.limits set note = 'tidy', "+set)
		wantCode(t, err, "55000")
	}
	execute(t, pool, "update pglimit.limits set limiter = limiter, key = key, prefix = prefix, note = 'the same keys'")
	if left := query[string](t, pool, "select current_setting('pglimit.by', true)"); left != "" {
		t.Errorf("by %s", left)
	}
}

// Of two who change limits at once the second waits for the first, and what it replaces is what the first set.
// A plain statement and a function in one transaction do not deadlock with another plain statement.
func TestTwoChangeLimitsAtOnce(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	const replaced = ` ->> 'limit_text'`
	for name, second := range map[string]struct{ sql, want string }{
		"set":    {`select pglimit.set_limit('set', '9/s', key => 'k', note => 'why')` + replaced, "5/s"},
		"delete": {`select pglimit.delete_limit('delete', key => 'k', note => 'why')` + replaced, "5/s"},
		"enable": {`select pglimit.enable_limit('enable', true, key => 'k', note => 'why')` + replaced, "5/s"},
		"list":   {`select pglimit.set_limits('[{"limiter": "list", "key": "k", "limit_text": "9/s"}]', note => 'why') #>> '{0,before,limit_text}'`, "5/s"},
		"plain":  {`update pglimit.limits set limit_text = '9/s' where limiter = 'plain' and key = 'was' returning limiter`, "plain"},
	} {
		execute(t, pool, `select pglimit.set_limit($1, '1/s', key => 'was', note => 'why')`, name)
		first := begin(t, pool)
		execute(t, first, `insert into pglimit.limits (limiter, key, limit_text, note) values ($1, 'k', '4/s', 'why')`, name)
		var got string
		whileBlocked(t, pool, func() { got = query[string](t, pool, second.sql) }, func() {
			execute(t, first, `select pglimit.set_limit($1, '5/s', key => 'k', note => 'why')`, name)
			commit(t, first)
		})
		if got != second.want {
			t.Errorf("%s: replaced %q, want %q", name, got, second.want)
		}
	}
}

// Where transactions are serializable by default, Postgres undoes a change that waited for another one: it is sent
// again. In the caller's transaction it is not, because Postgres has ended that: the caller hears why.
func TestTwoChangeLimitsOfASerializableServerAtOnce(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	strict := newPool(t, with(databaseURL(pool), "default_transaction_isolation", "serializable"), 2)
	table := limits.New(strict)
	rule := func(limit string) limits.Rule {
		return limits.Rule{Limiter: "api", Key: "k", Limit: limit, Note: "why"}
	}
	for name, second := range map[string]func(limits.Rule) (*limits.Rule, error){
		"set":     func(r limits.Rule) (*limits.Rule, error) { return table.Set(t.Context(), r) },
		"disable": func(r limits.Rule) (*limits.Rule, error) { return table.Disable(t.Context(), r) },
		"delete":  func(r limits.Rule) (*limits.Rule, error) { return table.Delete(t.Context(), r) },
		"import": func(r limits.Rule) (*limits.Rule, error) {
			changes, err := table.Import(t.Context(), []limits.Rule{r}, limits.ImportConfig{Note: "why"})
			if err != nil {
				return nil, err
			}
			return changes[0].Before, nil
		},
	} {
		_, err := limits.New(pool).Set(t.Context(), rule("1/s"))
		must(t, err)
		first := begin(t, pool)
		_, err = limits.On(pglimit.InTx(first)).Set(t.Context(), rule("5/s"))
		must(t, err)
		var replaced *limits.Rule
		whileBlocked(t, pool, func() { replaced, err = second(rule("9/s")) }, func() { commit(t, first) })
		if err != nil || replaced == nil || replaced.Limit != "5/s" {
			t.Errorf("%s: replaced %+v, %v", name, replaced, err)
		}
	}
	first, second := begin(t, pool), begin(t, strict)
	_, err := limits.On(pglimit.InTx(first)).Set(t.Context(), rule("5/s"))
	must(t, err)
	whileBlocked(t, pool, func() { _, err = limits.On(pglimit.InTx(second)).Set(t.Context(), rule("9/s")) }, func() { commit(t, first) })
	if sqlState(err) != "40001" {
		t.Errorf("in the caller's transaction: %v", err)
	}
}

// Many change the same few limits at once, and roll some changes back: what each change found is what the one before it
// left, and versions become visible in their order.
func TestTheHistoryOfLimitsIsOneLine(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	wide := newPool(t, databaseURL(pool), 9)
	var writers sync.WaitGroup
	for w := range 8 {
		writers.Go(func() {
			for i := range 12 {
				tx := begin(t, wide)
				key := fmt.Sprint("k", (w+i)%3)
				sql := `select pglimit.set_limit('api', $1, key => $2, note => 'why')`
				switch i % 4 {
				case 1:
					sql = `update pglimit.limits set limit_text = $1 where key = $2`
				case 2:
					sql = `insert into pglimit.limits (limiter, limit_text, key, note) values ('api', $1, $2, 'why') on conflict on constraint limits_match do nothing`
				case 3:
					sql = `with d as (delete from pglimit.limits where key = $2 and $1 <> '' returning 1) select count(*) from d`
				}
				execute(t, tx, sql, fmt.Sprintf("%d/s", 1+w*12+i), key)
				if i%5 == 4 {
					must(t, tx.Rollback(t.Context()))
				} else {
					must(t, tx.Commit(t.Context()))
				}
			}
		})
	}
	ended := make(chan struct{})
	go func() { writers.Wait(); close(ended) }()
	var versions []int64
	for reading := true; reading; {
		select {
		case <-ended:
			reading = false
		default:
		}
		ids := query[[]int64](t, pool, "select coalesce(array_agg(id order by id), '{}') from pglimit.limits_history")
		if len(ids) < len(versions) || !slices.Equal(ids[:len(versions)], versions) {
			t.Fatalf("after %v there came %v", versions, ids)
		}
		versions = ids
	}
	broken := texts(t, pool, `select format('%s of %s: %s after %s', id, key, before, was) from (
			select *, lag(after) over (partition by key order by id) as was from pglimit.limits_history) h where before is distinct from was`)
	if len(broken) > 0 || len(versions) < 30 {
		t.Errorf("%d changes; %q", len(versions), broken)
	}
	if differ := texts(t, pool, `select coalesce(l.key, h.key) from pglimit.limits l full join (
			select distinct on (key) * from pglimit.limits_history order by key, id desc) h using (key)
			where to_jsonb(l) is distinct from h.after`); len(differ) > 0 {
		t.Errorf("of %q, the last change is not what there is", differ)
	}
}

// SQL decides by the table as its transaction sees it.
func TestAnIsolatedTransactionDecidesByWhatItSaw(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	execute(t, pool, `select pglimit.set_limit('api', '5/h', note => 'why')`)
	for level, want := range map[string]int64{"read committed": 9, "repeatable read": 5, "serializable": 5} {
		tx := begin(t, pool)
		execute(t, tx, "set transaction isolation level "+level)
		execute(t, tx, `select pglimit.peek('api', 'k')`)
		execute(t, pool, `select pglimit.set_limit('api', '9/h', note => 'why')`)
		if got := query[int64](t, tx, `select remaining from pglimit.peek('api', 'k')`); got != want {
			t.Errorf("%s: %d left, want %d", level, got, want)
		}
		must(t, tx.Rollback(t.Context()))
		execute(t, pool, `select pglimit.set_limit('api', '5/h', note => 'why')`)
	}
}
