package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

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
