package integration

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pglimit/ratelimit/internal/schema"
	"github.com/pglimit/ratelimit/internal/session"
	"github.com/pglimit/ratelimit/migrations"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
)

// A made-up next release that changes the functions in every way there is.
func TestAReleaseOfFunctionsGoesUpAndDown(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must(t, os.CopyFS(dir, os.DirFS("../migrations")))
	write := func(name, text string) {
		must(t, os.WriteFile(filepath.Join(dir, "functions", name+".sql"), []byte(text), 0o600))
	}
	// generate returns the newest migration, up and down.
	generate := func(arguments ...string) (up, down string) {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), "go", append([]string{"run", "../migrations/internal/generate", "-dir", dir}, arguments...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		files, err := filepath.Glob(filepath.Join(dir, "sql", "*_functions.sql"))
		must(t, err)
		text, err := os.ReadFile(files[len(files)-1])
		must(t, err)
		up, down, _ = strings.Cut(string(text), "-- +goose Down\n")
		return up, down
	}
	pool := migrationPool(t, newDatabase(t))
	must(t, migrations.Up(t.Context(), pool))
	released := catalogOf(t, pool)

	// The release before: functions that are bound to each other, and a view.
	write("test_a", "-- One.\ncreate or replace function pglimit.test_a(n bigint) returns bigint\nlanguage sql\nreturn n;\n")
	write("test_b", "-- Bound to a.\ncreate or replace function pglimit.test_b(n bigint) returns bigint\nlanguage sql\nreturn pglimit.test_a(n);\n")
	write("test_gone", "-- Bound to b.\ncreate or replace function pglimit.test_gone() returns bigint\nlanguage sql\nbegin atomic\n    select pglimit.test_b(1);\nend;\n")
	write("test_loose", "-- A body that is a string.\ncreate or replace function pglimit.test_loose(out n bigint)\nlanguage plpgsql\nset search_path = ''\nas $$\nbegin\n    n := pglimit.test_a(1);\nend\n$$;\n")
	write("test_view", "-- A view.\ncreate or replace view pglimit.test_view as\nselect pglimit.test_b(1) as one;\ncomment on view pglimit.test_view is 'a; b';\n")
	up, down := generate("-release")
	run(t, pool, up)
	first := catalogOf(t, pool)
	if len(first) != len(released)+9 { // four functions; of the view itself, its text, its column and two types
		t.Fatalf("%d lines of catalogue became %d", len(released), len(first))
	}

	// This one: a takes another type, gone is gone, loose has another body, the view
	// another column, new is new.
	write("test_a", "-- One.\ncreate or replace function pglimit.test_a(n numeric) returns bigint\nlanguage sql\nreturn n + 1;\n")
	must(t, os.Remove(filepath.Join(dir, "functions", "test_gone.sql")))
	write("test_loose", "-- A body that is a string.\ncreate or replace function pglimit.test_loose(out n bigint)\nlanguage plpgsql\nset search_path = ''\nas $$\nbegin\n    n := pglimit.test_a(2);\nend\n$$;\n")
	write("test_view", "-- A view.\ncreate or replace view pglimit.test_view as\nselect pglimit.test_b(1) as two, pglimit.test_new() as three;\n")
	write("test_new", "-- New.\ncreate or replace function pglimit.test_new() returns bigint\nlanguage sql\nreturn 3;\n")
	secondUp, secondDown := generate("-release")
	run(t, pool, secondUp)
	second := catalogOf(t, pool)
	all := strings.Join(second, "\n")
	for what, want := range map[string]bool{
		"test_a(n numeric)": true, "test_a(n bigint)": false, "test_gone": false, "test_a(2)": true, "test_a(1)": false,
		"AS three": true, "AS one": false, "a; b": false,
	} {
		if strings.Contains(all, what) != want {
			t.Errorf("after the second release: the catalogue has %q: %t", what, !want)
		}
	}

	run(t, pool, secondDown)
	diff(t, "down from the second release, against the first", first, catalogOf(t, pool))
	run(t, pool, secondUp)
	diff(t, "the second release again", second, catalogOf(t, pool))
	run(t, pool, secondDown)
	run(t, pool, down)
	diff(t, "down from the first release, against before", released, catalogOf(t, pool))

	// Without -release the newest file is made again, whatever was in it.
	if again, _ := generate(); again != secondUp {
		t.Errorf("made again, the newest migration is another:\n%s", again)
	}
}

// internal/schema/built.txt is what Up makes. PGLIMIT_TEST_UPDATE=1 writes it.
func TestBuiltSchemaIsWhatUpMakes(t *testing.T) {
	t.Parallel()
	_, things, _ := strings.Cut(schema.Differs, "with schema as")
	things, _, _ = strings.Cut("with schema as"+things, "select coalesce(pg_catalog.array_agg(o.name")
	pool := migrationPool(t, newDatabase(t))
	apply := func(span migrations.Span) []string {
		text, err := span.SQL()
		must(t, err)
		run(t, pool, text)
		return texts(t, pool, things+"select pg_catalog.md5(fact) || ' ' || name from things order by name collate \"C\"")
	}
	required := apply(migrations.Span{WithoutExclusionRange: true})
	whole := apply(migrations.Span{From: 2, To: 2})
	want := fmt.Sprintln(query[int](t, pool, "select max(version_id) from pglimit.goose_db_version"))
	for _, line := range whole {
		if !slices.Contains(required, line) {
			line = strings.Replace(line, " ", " ?", 1) // optional
		}
		want += line + "\n"
	}
	const path = "../internal/schema/built.txt"
	if os.Getenv("PGLIMIT_TEST_UPDATE") != "" {
		must(t, os.WriteFile(path, []byte(want), 0o644))
	}
	got, err := os.ReadFile(path)
	must(t, err)
	diff(t, path+" (PGLIMIT_TEST_UPDATE=1 go test ./integration -run TestBuiltSchema writes it)", strings.Split(want, "\n"), strings.Split(string(got), "\n"))
	if version := query[int64](t, pool, "select pglimit.schema_version()"); fmt.Sprint(version) != strings.SplitN(want, "\n", 2)[0] {
		t.Errorf("pglimit.schema_version() is %d", version)
	}
}

// Functions that are not this release's are named by who is asked, and Up puts them back; of tables it says what differs.
func TestWhatDiffersIsNamedAndPutBack(t *testing.T) {
	t.Parallel()
	for change, want := range map[string]string{
		"drop function pglimit.token_bucket_take":                                                                                                                       "function pglimit.token_bucket_take",
		"alter function pglimit.token_bucket_take reset jit":                                                                                                            "function pglimit.token_bucket_take",
		"alter function pglimit.clock_ns volatile security definer":                                                                                                     "function pglimit.clock_ns",
		"create function pglimit.allow(text) returns int language sql return 1":                                                                                         "function pglimit.allow",
		"drop function pglimit.set_limits; create function pglimit.set_limits() returns int language sql as 'select 1'":                                                 "function pglimit.set_limits",
		"create or replace function pglimit.limits_since(known text) returns text language sql as $$ select '' $$":                                                      "function pglimit.limits_since",
		"drop function pglimit.explain_limit, pglimit.limits_since":                                                                                                     "function pglimit.explain_limit, function pglimit.limits_since",
		"alter table pglimit.limits drop column note cascade":                                                                                                           "column pglimit.limits.note, constraint limits_note_check of pglimit.limits, trigger limit_a_note_changes of pglimit.limits",
		"alter table pglimit.permits add column mine int; create index mine on pglimit.limits (note); create function pglimit.mine() returns int language sql return 1": "",
		"select": "",
	} {
		t.Run(change, func(t *testing.T) {
			t.Parallel()
			pool := newMigrated(t)
			before := catalogOf(t, pool)
			run(t, pool, change)
			differ, err := migrations.Differences(t.Context(), pool)
			must(t, err)
			if got := strings.Join(differ, ", "); got != want {
				t.Fatalf("differs: %s", got)
			}
			functions := strings.HasPrefix(want, "function")
			ready := strategies.TokenBucket{}.Ready(t.Context(), session.OnPool(pool))
			if functions != errors.Is(ready, rate.ErrNotMigrated) || functions && !strings.Contains(ready.Error(), want) || !functions && ready != nil {
				t.Errorf("ready: %v", ready)
			}
			err = migrations.Up(t.Context(), pool)
			if functions || want == "" {
				must(t, err)
			} else if !errors.Is(err, migrations.ErrDiffers) || !strings.Contains(err.Error(), want) {
				t.Errorf("Up: %v", err)
			}
			if functions {
				diff(t, "after Up, against before", before, catalogOf(t, pool))
				must(t, strategies.TokenBucket{}.Ready(t.Context(), session.OnPool(pool)))
			}
		})
	}
}

// A program of an older release decides on, whatever a newer one has made of the functions.
func TestANewerReleasesFunctionsAreItsOwn(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	run(t, pool, `alter function pglimit.token_bucket_take reset jit;
		create or replace function pglimit.schema_version() returns bigint language sql immutable parallel safe as $$ select 9 $$`)
	must(t, strategies.TokenBucket{}.Ready(t.Context(), session.OnPool(pool)))
}
