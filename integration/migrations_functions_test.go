package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pglimit/ratelimit/migrations"
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
