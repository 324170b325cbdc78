package integration

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/migrations"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
)

// internal/postgres/built.txt is what Up makes. PGLIMIT_TEST_UPDATE=1 writes it.
func TestBuiltSchemaIsWhatUpMakes(t *testing.T) {
	t.Parallel()
	_, things, _ := strings.Cut(postgres.Differs, "with schema as")
	things, _, _ = strings.Cut("with schema as"+things, "select coalesce(pg_catalog.array_agg(o.name")
	pool := migrationPool(t, newDatabase(t))
	apply := func(span migrations.Span) []string {
		text, err := span.SQL()
		must(t, err)
		execute(t, pool, text)
		return texts(t, pool, things+"select pg_catalog.md5(fact) || ' ' || name from things order by name collate \"C\"")
	}
	required := apply(migrations.Span{WithoutExclusionRange: true})
	whole := apply(migrations.Span{From: 2, To: 2})
	text, err := os.ReadFile("../migrations/distributed.sql")
	must(t, err)
	execute(t, pool, string(text))
	// A function that replaces another has its name and its parameters.
	if names := texts(t, pool, "select proname::text from pg_proc where pronamespace = 'pglimit'::regnamespace group by 1 having count(*) > 1"); len(names) > 0 {
		t.Errorf("overloaded: %q", names)
	}
	distributed := texts(t, pool, things+"select pg_catalog.md5(fact) || ' ' || name from things order by name collate \"C\"")
	want := fmt.Sprintln(query[int](t, pool, "select max(version_id) from pglimit.goose_db_version"))
	for _, line := range whole {
		if !slices.Contains(required, line) {
			line = strings.Replace(line, " ", " ?", 1) // optional
		}
		want += line + "\n"
	}
	for _, line := range distributed {
		if !slices.Contains(whole, line) {
			want += strings.Replace(line, " ", " +", 1) + "\n"
		}
	}
	const path = "../internal/postgres/built.txt"
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

// Functions that are not this release's are named by who is asked, and Up puts them back; of tables it says what
// differs.
func TestWhatDiffersIsNamedAndPutBack(t *testing.T) {
	t.Parallel()
	for change, want := range map[string]string{
		"drop function pglimit.token_bucket_take":                                                                                                                                "function pglimit.token_bucket_take",
		"alter function pglimit.token_bucket_take reset jit":                                                                                                                     "function pglimit.token_bucket_take",
		"alter function pglimit.clock_ns volatile security definer":                                                                                                              "function pglimit.clock_ns",
		"create function pglimit.allow(text) returns int language sql return 1":                                                                                                  "function pglimit.allow",
		"drop function pglimit.set_limits; create function pglimit.set_limits() returns int language sql as 'select 1'":                                                          "function pglimit.set_limits",
		"create or replace function pglimit.limits_since(known text) returns text language sql as $$ select '' $$":                                                               "function pglimit.limits_since",
		"drop function pglimit.explain_limit, pglimit.limits_since":                                                                                                              "function pglimit.explain_limit, function pglimit.limits_since",
		"alter table pglimit.limits_history drop column role; alter table pglimit.limits drop constraint limits_note_check; drop trigger limit_a_note_changes on pglimit.limits": "column pglimit.limits_history.role, constraint limits_note_check of pglimit.limits, trigger limit_a_note_changes of pglimit.limits",
		"alter table pglimit.permits add column mine int; create index mine on pglimit.limits (note); create function pglimit.mine() returns int language sql return 1":          "",
		"select": "",
	} {
		t.Run(change, func(t *testing.T) {
			t.Parallel()
			pool := newMigrated(t)
			before := catalogOf(t, pool)
			execute(t, pool, change)
			differ, err := migrations.Differences(t.Context(), pool)
			must(t, err)
			if got := strings.Join(differ, ", "); got != want {
				t.Fatalf("differs: %s", got)
			}
			functions := strings.HasPrefix(want, "function")
			ready := strategies.TokenBucket{}.Ready(t.Context(), postgres.OnPool(pool))
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
				must(t, strategies.TokenBucket{}.Ready(t.Context(), postgres.OnPool(pool)))
			}
		})
	}
}

// A program of an older release decides on, whatever a newer one has made of the functions.
func TestANewerReleasesFunctionsAreItsOwn(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	execute(t, pool, `alter function pglimit.token_bucket_take reset jit;
		create or replace function pglimit.schema_version() returns bigint language sql immutable parallel safe as $$ select 4 $$`)
	must(t, strategies.TokenBucket{}.Ready(t.Context(), postgres.OnPool(pool)))
}
