package integration

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/migrations"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
)

// settingOutcomes is everything, over every driver, and in the modes of pgx that send a query, or what goes
// with it, in another form: prepared and binary, unprepared, and as one text. (The others prepare, too.)
func settingOutcomes(t *testing.T, pool *pgxpool.Pool) (o outcomes) {
	t.Helper()
	ctx := t.Context()
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		config := pool.Config().Copy()
		config.ConnConfig.DefaultQueryExecMode = mode
		in, err := pgxpool.NewWithConfig(ctx, config)
		must(t, err)
		t.Cleanup(in.Close)
		name := strings.ReplaceAll(mode.String(), " ", "-")
		for _, strategy := range strategies.All() {
			o = append(o, strategyOutcomes(ctx, name, on(in), strategy)...)
		}
		o = append(o, jobOutcomes(ctx, t, in, name)...)
	}
	for _, driver := range sqlDrivers {
		session := sqlDriver{openSQL(t, driver.open, databaseURL(pool), 4)}.Session()
		for i, strategy := range strategies.All() {
			if i == 0 || driver.name == "pq" { // as in TestSQLConformance
				o = append(o, strategyOutcomes(ctx, "sql "+driver.name, session, strategy)...)
			}
		}
	}
	utf8 := newPool(t, with(databaseURL(pool), "client_encoding", "UTF8"), 1) // as every driver says, of the text that it sends
	o = append(o, sqlOutcomes(ctx, utf8, "other languages")...)
	o = append(o, cliOutcomes(t, cli{binary: builtCLI(t), env: []string{"DATABASE_URL=" + databaseURL(pool)}})...)
	// What that made, in the words of a role without settings. A session that was there before keeps them.
	conn, err := pool.Acquire(ctx)
	must(t, err)
	defer conn.Release()
	execute(t, pool, "do $$ begin execute format('alter role %I in database %I reset all', current_user, current_database()); end $$")
	fresh := newPool(t, databaseURL(pool), 1)
	made := func(by string) { o.add("made by "+by, strings.Join(catalogOf(t, fresh), "\n"), nil) }
	made("the command")
	for _, up := range []bool{false, true} {
		text, err := migrations.Span{Down: !up}.SQL()
		must(t, err)
		_, err = conn.Exec(ctx, text)
		o.add("migrated with another tool", up, err)
	}
	made("another tool")
	o.add("access methods", texts(t, fresh, "select concat_ws(' ', relname, amname) from pg_class c join pg_am a on a.oid = relam where relnamespace = 'pglimit'::regnamespace order by 1"), nil)
	return o
}

// Whatever is set for a role, decisions and commands are the same, or are refused with an error that names
// the setting.
func TestNoSettingOfARoleChangesADecisionOrACommand(t *testing.T) {
	t.Parallel()
	want := settingOutcomes(t, setUp(t, nil))
	for _, settings := range settingsOf(t, newMigrated(t), 5) {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			got := settingOutcomes(t, setUp(t, settings))
			if len(got) != len(want) {
				t.Errorf("%d outcomes, not %d", len(got), len(want))
			}
			for i := range min(len(got), len(want)) {
				refused := strings.Contains(got[i], ": ERROR ") && slices.ContainsFunc(settings, func(v value) bool { return strings.Contains(got[i], v.setting) })
				if got[i] != want[i] && !refused {
					t.Errorf("got  %s\nwant %s", got[i], want[i])
				}
			}
			if t.Failed() {
				t.Log(settings)
			}
		})
	}
}

// Where the planner may not use a kind of node that a statement needs, it finds the plan so dear that it compiles it,
// for longer than Config.Timeout. No statement of a decision has such a plan, or it is run without the compiler. The
// answers stay the same too.
func TestNoPlannerSettingHasAStatementCompiled(t *testing.T) {
	t.Parallel()
	settings := texts(t, newMigrated(t), "select name from pg_settings where name like 'enable\\_%' and vartype = 'bool' and setting = 'on' order by 1")
	want, dear := plannedOutcomes(t, "enable_nestloop", "on")
	if len(dear) > 0 || len(settings) < 10 {
		t.Errorf("with no setting: %v, settings %s", dear, settings)
	}
	for _, setting := range settings {
		t.Run(setting, func(t *testing.T) {
			t.Parallel()
			got, dear := plannedOutcomes(t, setting, "off")
			if !slices.Equal(got, want) {
				t.Errorf("got  %s\nwant %s", strings.Join(got, "\n     "), strings.Join(want, "\n     "))
			}
			for query, cost := range dear {
				t.Errorf("cost %g: %s", cost, query)
			}
		})
	}
}

// plannedOutcomes asks for everything that decides, in a database where a setting of the planner has the value, and
// returns the statements that the compiler is used for, with their cost.
func plannedOutcomes(t *testing.T, setting, value string) (o outcomes, dear map[string]float64) {
	t.Helper()
	ctx, dear := t.Context(), map[string]float64{}
	usual := newMigrated(t)
	config := usual.Config()
	config.MaxConns = 1
	maps.Copy(config.ConnConfig.RuntimeParams, map[string]string{
		"session_preload_libraries": "auto_explain", "auto_explain.log_min_duration": "0", "auto_explain.log_level": "notice", "auto_explain.log_format": "json",
		"auto_explain.log_nested_statements": "on", "auto_explain.log_settings": "on", "jit": "on", "jit_above_cost": "1e300", setting: value, // the cost is looked at, and nothing compiled
	})
	plans := 0
	config.ConnConfig.OnNotice = func(_ *pgconn.PgConn, notice *pgconn.Notice) {
		_, text, is := strings.Cut(notice.Message, "plan:\n")
		var plan struct {
			Query string `json:"Query Text"`
			Plan  struct {
				Cost float64 `json:"Total Cost"`
			}
			Settings map[string]string
		}
		if !is || json.Unmarshal([]byte(text), &plan) != nil {
			return
		}
		plans++
		whole := plan.Settings["enable_tidscan"] == "off" && strings.Contains(plan.Query, "ctid >=") // reads a large table for each few pages
		compiled := plan.Plan.Cost > 100_000 && plan.Settings["jit"] != "off"                        // jit_above_cost
		if (compiled || whole) && !strings.Contains(plan.Query, "concat_ws(") {
			dear[plan.Query] = plan.Plan.Cost
		}
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	must(t, err)
	t.Cleanup(pool.Close)
	timelessly(t, pool)
	for _, strategy := range strategies.All() {
		o = append(o, strategyOutcomes(ctx, "planned", on(pool), strategy)...)
		// The clock has stepped back since the row was written.
		r := rate.Request{Limiter: "ahead", Key: "k", Limit: pglimit.Every(time.Hour), Tokens: 1, Unit: 1}
		takeAll(t, pool, strategy, r)
		ahead := "at_ns = at_ns + 86400000000000, full_ns = full_ns + 86400000000000"
		switch strategy.Name() {
		case "exclusion_range":
			ahead = "during = tstzrange(lower(during) + '1 day', upper(during) + '1 day')"
		case "warm_up":
			ahead += ", free_ns = free_ns + 86400000000000, due_ns = due_ns + 86400000000000"
		}
		execute(t, usual, "update pglimit."+strategy.Name()+" set "+ahead)
		d := takeAll(t, pool, strategy, r)[0]
		o.add(strategy.Name()+": ahead", said(d), strategy.GiveBack(ctx, on(pool), []pglimit.Refund{{Request: r, At: d.At}}))
	}
	o = append(o, sqlOutcomes(ctx, pool, "planned")...)
	for _, call := range []string{
		"set_limit('rules', '3/1h')", "set_limit('rules', '2/1h', 'k')", "set_limit('places', '2 places')", "limits_since(null)", "allow('rules', 'k')", "peek('rules', 'k')",
		"explain_limit('rules', 'k')", "limit_history('rules')", "acquire('places', 'k', holder => 'a')", "acquire('places', 'k', 3, 2, holder => 'b')", "renew('places', 'k', 'a')",
		"release('places', 'k', 'a')", "instance_lives(array['rules', 'other'], array['1', '2'], 0)", "instance_lives(array['rules'], array['1'], 1)",
	} {
		_, err := pool.Exec(ctx, "select pglimit."+call)
		o.add(call, "done", err)
	}
	o.add("rules", len(texts(t, pool, "select id::text from pglimit.limits")), nil)
	if plans < 100 {
		t.Errorf("%d plans were seen", plans)
	}
	return o, dear
}

// A role whose transactions are read-only can look and migrate. All else is refused, and nothing is taken.
func TestAReadOnlyRoleIsToldSo(t *testing.T) {
	t.Parallel()
	pool := setUp(t, []value{{"default_transaction_read_only", "on"}})
	admin := newPool(t, with(databaseURL(pool), "default_transaction_read_only", "off"), 1)
	for _, strategy := range strategies.All() {
		take(t, admin, strategy, "empty", hours)
		for _, keys := range [][]string{{"empty"}, {"empty", "new"}} {
			peeks := asks(hours, keys...)
			for i := range peeks {
				peeks[i].Tokens = 0
			}
			if d := takeAll(t, pool, strategy, peeks...); d[0].Allowed || !d[len(d)-1].Allowed && len(d) > 1 {
				t.Errorf("%s: peeks %+v", strategy.Name(), d)
			}
		}
		for _, requests := range [][]rate.Request{asks(hours, "k"), asks(hours, "k", "l")} {
			_, err := strategy.Take(t.Context(), on(pool), requests)
			wantSays(t, err, "default_transaction_read_only")
		}
		wantSays(t, strategy.Reset(t.Context(), on(pool), "test", "k"), "default_transaction_read_only")
		_, err := strategy.Sweep(t.Context(), on(pool), 0, 100)
		if removed, all := strategy.(pglimit.AllResetter).ResetAll(t.Context(), on(pool), "test"); removed > 0 || sqlState(all) != sqlState(err) {
			t.Errorf("%s: %d removed, %v", strategy.Name(), removed, all)
		}
	}
	c := cli{binary: builtCLI(t), env: []string{"DATABASE_URL=" + databaseURL(pool)}}
	c.run(t, "allow", "k", "--limit", "1/1h").fails(t, "default_transaction_read_only")
	c.run(t, "allow", "k", "--limit", "1/1h", "--limit", "2/24h").fails(t, "default_transaction_read_only")
	c.run(t, "reset", "k").fails(t, "default_transaction_read_only")
	c.run(t, "cleanup", "--once").exits(t, 2)
	c.run(t, "peek", "k", "--limit", "1/1h").exits(t, 0).prints(t, "1 of 1 left")
	c.run(t, "migrate", "status").exits(t, 0)
	c.run(t, "storage", "unlogged").exits(t, 0)
	c.run(t, "migrate", "down", "--to", "0", "--yes").exits(t, 0)
	c.run(t, "migrate", "up").exits(t, 0)
}

func wantSays(t *testing.T, err error, what string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), what) {
		t.Errorf("%v: want it to say %q", err, what)
	}
}

// value that a setting of Postgres can have.
type value struct{ setting, value string }

// chosenValues of settings that are neither boolean nor one of a few words. Where several make the
// planner choose otherwise, each is enough by itself.
var chosenValues = []value{
	{"DateStyle", "German"}, {"DateStyle", "SQL, DMY"}, {"DateStyle", "Postgres, DMY"}, {"DateStyle", "ISO, YMD"},
	{"TimeZone", "Asia/Kathmandu"}, {"TimeZone", "America/St_Johns"}, {"TimeZone", "Pacific/Kiritimati"}, {"timezone_abbreviations", "India"},
	{"client_encoding", "SQL_ASCII"}, {"client_encoding", "LATIN1"}, {"client_encoding", "SJIS"},
	{"search_path", "public, pg_catalog"}, {"search_path", `"nowhere"`}, // plant puts things into public
	{"lc_messages", "C"}, {"lc_monetary", "C"}, {"lc_numeric", "C"}, {"lc_time", "C"}, {"default_text_search_config", "simple"},
	{"extra_float_digits", "-15"}, {"extra_float_digits", "3"},
	{"default_table_access_method", "public_heap"}, // see setUp
	{"client_min_messages", "debug5"}, {"client_min_messages", "error"},
	{"application_name", `x'"\; $1 %s`},
	{"statement_timeout", "50s"}, {"lock_timeout", "10s"}, {"idle_in_transaction_session_timeout", "10s"}, {"idle_session_timeout", "50s"},
	{"work_mem", "64"}, {"temp_buffers", "100"}, {"hash_mem_multiplier", "1"}, {"max_stack_depth", "200"},
	{"join_collapse_limit", "1"}, {"from_collapse_limit", "1"}, {"geqo_threshold", "2"}, {"cursor_tuple_fraction", "0"}, {"default_statistics_target", "1"},
	{"seq_page_cost", "0"}, {"random_page_cost", "0"}, {"random_page_cost", "1e9"}, {"cpu_tuple_cost", "0"}, {"cpu_index_tuple_cost", "1e6"}, {"cpu_operator_cost", "0"}, {"effective_cache_size", "1"},
	{"parallel_setup_cost", "0"}, {"parallel_tuple_cost", "0"}, {"min_parallel_table_scan_size", "0"}, {"min_parallel_index_scan_size", "0"},
	{"max_parallel_workers_per_gather", "0"}, {"max_parallel_maintenance_workers", "0"},
	{"commit_delay", "10"}, {"effective_io_concurrency", "0"}, {"vacuum_cost_delay", "1"},
}

// leftOut are settings that say nothing of how a statement is read or run, with the beginnings of their names.
var leftOut = []string{
	"log_", "debug_print_", "debug_pretty_print", "trace_", // how much is written to the server's log
	"icu_validation_level",          // how much is said of a bad ICU locale (16)
	"client_min_messages",           // all values would be as many megabytes
	"jit",                           // how a plan is run: each that another setting makes look dear would be compiled, for minutes
	"transaction_",                  // of one transaction: each begins with what default_transaction_... says
	"default_transaction_read_only", // see TestAReadOnlyRoleIsToldSo
}

// settingsOf returns every boolean setting the other way round, every other word of those that have a few, and
// the chosen values, in as many parts: each has a setting at most once.
func settingsOf(t *testing.T, pool *pgxpool.Pool, parts int) [][]value {
	t.Helper()
	rows, err := pool.Query(t.Context(), `
		select name, v from pg_settings,
			unnest(case vartype when 'bool' then array_remove(array['on', 'off'], setting) else array_remove(enumvals, setting) end) v
		where context in ('user', 'superuser') and vartype in ('bool', 'enum') order by name, v`)
	must(t, err)
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (v value, err error) { return v, row.Scan(&v.setting, &v.value) })
	must(t, err)
	all = slices.DeleteFunc(all, func(v value) bool {
		return slices.ContainsFunc(leftOut, func(start string) bool { return strings.HasPrefix(v.setting, start) })
	})
	if len(all) < 60 {
		t.Fatalf("pg_settings has only %d: %v", len(all), all)
	}
	out := make([][]value, parts)
	for i, v := range append(all, chosenValues...) {
		out[i%parts] = append(out[i%parts], v)
	}
	for i, part := range out {
		for j, v := range part {
			if slices.ContainsFunc(part[:j], func(other value) bool { return other.setting == v.setting }) {
				t.Fatalf("part %d has %s twice", i, v.setting)
			}
		}
	}
	return out
}

// setUp makes a migrated database in which the role of the tests has the settings, with what others planted in public.
func setUp(t *testing.T, settings []value) *pgxpool.Pool {
	t.Helper()
	pool := newMigrated(t)
	timelessly(t, pool) // else what a call of many says depends on how busy the machine is
	plant(t, pool)
	if _, err := pool.Exec(t.Context(), "create access method public_heap type table handler heap_tableam_handler"); err != nil {
		t.Logf("only a superuser may: %v", err)
	}
	for _, v := range settings {
		tx := begin(t, pool)
		if _, err := tx.Exec(t.Context(), "select set_config($1, $2, true)", v.setting, v.value); err != nil {
			t.Logf("this server has no %v: %v", v, err)
		} else {
			execute(t, tx, fmt.Sprintf("do $$ begin execute format('alter role %%I in database %%I set %s from current', current_user, current_database()); end $$", v.setting))
			commit(t, tx)
		}
	}
	pool.Close()
	return newPool(t, databaseURL(pool), 4)
}
