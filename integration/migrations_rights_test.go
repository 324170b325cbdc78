package integration

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/migrations"
)

func TestWithoutTheRightToCreateBtreeGistTheRestIsMigrated(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	admin, role := migrationPool(t, url), newRole(t, url)
	execute(t, admin, `create schema pglimit authorization `+role)
	pool := migrationPool(t, url, as(role))

	for range 2 {
		err := migrations.Up(t.Context(), pool)
		if !errors.Is(err, migrations.ErrBtreeGist) {
			t.Fatalf("got %v, not ErrBtreeGist", err)
		}
		wantCode(t, err, "42501")
		wantLine(t, err, "create extension btree_gist", "WithoutExclusionRange", "--without-exclusion-range")
		wantApplied(t, pool, "1 3")
	}
	must(t, migrations.Up(t.Context(), pool, migrations.WithoutExclusionRange()))
	wantApplied(t, pool, "1 3")

	// An administrator does what the error says.
	execute(t, admin, `create extension btree_gist`)
	must(t, migrations.Up(t.Context(), pool))
	wantApplied(t, pool, "1 2 3")

	// The extension was there before, and is in use by who knows whom: it stays.
	must(t, migrations.DownTo(t.Context(), pool, 0))
	if got := texts(t, pool, `select e.extnamespace::regnamespace::text from pg_extension e where e.extname = 'btree_gist'`); fmt.Sprint(got) != "[public]" {
		t.Errorf("btree_gist is in %v, not in public", got)
	}
	// So does the schema, empty, because the role could not make it again.
	must(t, migrations.Up(t.Context(), pool))
	wantApplied(t, pool, "1 2 3")
}

func TestMissingRights(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	admin, role, migrator := migrationPool(t, url), newRole(t, url), newRole(t, url)
	pool := migrationPool(t, url, as(role))
	database := admin.Config().ConnConfig.Database
	quoted := `"` + role + `"`

	// No schema, and no right to make one.
	err := migrations.Up(t.Context(), pool)
	wantCode(t, err, "42501")
	wantLine(t, err, `role `+quoted+` may not create schemas`, `'grant create on database "`+database+`" to `+quoted+`'`, `'create schema pglimit authorization `+quoted+`'`)
	wantApplied(t, pool, "")

	// A schema of somebody else's.
	execute(t, admin, `create schema pglimit; grant all on schema pglimit to `+role)
	err = migrations.Up(t.Context(), pool)
	wantCode(t, err, "42501")
	wantLine(t, err, `'alter schema pglimit owner to `+quoted+`'`)
	wantApplied(t, pool, "")

	// What the first error says, done, is enough.
	execute(t, admin, `drop schema pglimit; grant create on database `+database+` to `+migrator)
	must(t, migrations.Up(t.Context(), migrationPool(t, url, as(migrator)), migrations.WithoutExclusionRange()))

	// A migrated database that the role may not even read, then may read, then may not
	// change.
	_, err = migrations.Status(t.Context(), pool)
	wantCode(t, err, "42501")
	wantLine(t, err, `migrate as "`+migrator+`"`, `'pglimit migrate grants `+quoted+`'`)
	execute(t, admin, `grant usage on schema pglimit to `+role+`; grant select on pglimit.goose_db_version to `+role)
	must(t, migrations.Up(t.Context(), pool, migrations.WithoutExclusionRange()))
	execute(t, admin, `create extension btree_gist`)
	for _, err := range []error{migrations.Up(t.Context(), pool), migrations.Down(t.Context(), pool)} {
		wantCode(t, err, "42501")
		wantLine(t, err, `migrate as "`+migrator+`"`)
		if errors.Is(err, migrations.ErrBtreeGist) {
			t.Errorf("btree_gist is there, and not what is missing: %v", err)
		}
	}
	wantApplied(t, pool, "1 3")
}

func TestStatusOnlyReads(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	admin, role := migrationPool(t, url), newRole(t, url)
	reader := migrationPool(t, url, as(role), setting("default_transaction_read_only", "on"))
	empty := objectsOf(t, admin)

	wantApplied(t, reader, "")
	diff(t, "after Status, against before", empty, objectsOf(t, admin))

	clock := func() (now time.Time) {
		must(t, admin.QueryRow(t.Context(), `select clock_timestamp()`).Scan(&now))
		return now
	}
	begin := clock()
	must(t, migrations.Up(t.Context(), admin))
	end := clock()
	execute(t, admin, `grant usage on schema pglimit to `+role+`; grant select on pglimit.goose_db_version to `+role)
	wantApplied(t, reader, "1 2 3")
	status, err := migrations.Status(t.Context(), reader)
	must(t, err)
	for _, m := range status {
		// The session that migrated had another time zone than UTC.
		if m.AppliedAt.Before(begin) || m.AppliedAt.After(end) {
			t.Errorf("%+v: not applied between %v and %v", m, begin, end)
		}
	}
	// Nothing to do takes no right to do it.
	must(t, migrations.Up(t.Context(), reader))
}

func TestForeignObjectKeepsTheSchema(t *testing.T) {
	t.Parallel()
	pool := migrationPool(t, newDatabase(t))
	must(t, migrations.Up(t.Context(), pool))
	execute(t, pool, `create table pglimit.somebody_elses (a int)`)
	wantLine(t, migrations.DownTo(t.Context(), pool, 0), "pglimit.somebody_elses")
	if got := texts(t, pool, `select relname::text from pg_class where relnamespace = 'pglimit'::regnamespace and relkind <> 'i'`); fmt.Sprint(got) != "[somebody_elses]" {
		t.Errorf("the schema holds %v", got)
	}
	must(t, migrations.Up(t.Context(), pool))
}

// Where the extension lives is the operator's: in public, unless it is somewhere already, whatever
// the role may do there. It stays when pglimit goes.
func TestBtreeGistIsTheDatabases(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ prepare, want string }{
		"nobody made it":          {``, "public"},
		"a schema nobody may use": {`create schema extensions; create extension btree_gist schema extensions; revoke all on schema extensions from public`, "extensions"},
		"in pglimit":              {`create schema pglimit authorization %[1]s; create extension btree_gist schema pglimit`, "pglimit"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := newDatabase(t)
			admin, role := migrationPool(t, url), newRole(t, url)
			execute(t, admin, strings.ReplaceAll(c.prepare, "%[1]s", role)+`; grant create on database `+admin.Config().ConnConfig.Database+` to `+role)
			pool := migrationPool(t, url, as(role))
			must(t, migrations.Up(t.Context(), pool))
			wantApplied(t, pool, "1 2 3")
			execute(t, pool, `insert into pglimit.exclusion_range values ('k', 'l', '[2026-01-01,2026-01-02)')`)
			if err := migrations.DownTo(t.Context(), pool, 0); c.want == "pglimit" {
				wantLine(t, err, "extension btree_gist depends on schema pglimit")
			} else {
				must(t, err)
			}
			if got := texts(t, pool, `select extnamespace::regnamespace::text from pg_extension where extname = 'btree_gist'`); fmt.Sprint(got) != "["+c.want+"]" {
				t.Errorf("btree_gist is in %v, not in %s", got, c.want)
			}
			must(t, migrations.Up(t.Context(), pool))
		})
	}

	// No schema public, and so nowhere to put it.
	url := newDatabase(t)
	pool := migrationPool(t, url)
	execute(t, pool, `drop schema public`)
	err := migrations.Up(t.Context(), pool)
	if !errors.Is(err, migrations.ErrBtreeGist) {
		t.Fatalf("got %v, not ErrBtreeGist", err)
	}
	wantLine(t, err, `schema "public" does not exist`, "create extension btree_gist")
	wantApplied(t, pool, "1 3")
}

// What somebody built upon our tables is not torn down, and nothing else is then.
func TestDownIsAllOrNothing(t *testing.T) {
	t.Parallel()
	pool := migrationPool(t, newDatabase(t))
	must(t, migrations.Up(t.Context(), pool))
	execute(t, pool, `create view public.report as select key from pglimit.token_bucket`)
	before := catalogOf(t, pool)
	err := migrations.DownTo(t.Context(), pool, 0)
	wantCode(t, err, "2BP01")
	wantLine(t, err, "migration tables", "view public.report")
	diff(t, "after the refused DownTo", before, catalogOf(t, pool))
}

func TestAnotherToolsSchemaIsRecognised(t *testing.T) {
	t.Parallel()
	pool := migrationPool(t, newDatabase(t))
	must(t, migrations.Up(t.Context(), pool))
	execute(t, pool, `drop table pglimit.goose_db_version`)
	before := catalogOf(t, pool)
	wantLine(t, migrations.Up(t.Context(), pool), "migrated with another tool")
	diff(t, "after the refused Up", before, catalogOf(t, pool))
}

// Whoever may create in the database could else have a superuser run his code: he makes the schema first.
func TestWhatAnotherRoleMadeIsRefused(t *testing.T) {
	t.Parallel()
	const forged = "create table pglimit.goose_db_version (id integer primary key generated by default as identity, version_id bigint not null, is_applied boolean not null, tstamp timestamp not null default now()); " +
		"insert into pglimit.goose_db_version (version_id, is_applied) select n, true from generate_series(0, 3) n"
	for name, test := range map[string]struct{ admin, mallory, want string }{
		"a schema":            {"", "create schema pglimit", "schema pglimit of role %s"},
		"a function":          {"", "create schema pglimit; create function pglimit.clock_ns() returns bigint language sql return 1", "schema pglimit of role %[1]s, function pglimit.clock_ns() of role %[1]s"},
		"all is applied":      {"", "create schema pglimit; " + forged, "table pglimit.goose_db_version of role %s"},
		"a forged version":    {"create schema pglimit; grant all on schema pglimit to %s", forged, "there is sequence pglimit.goose_db_version_id_seq of role %[1]s, table pglimit.goose_db_version of role %[1]s"},
		"a type":              {"create schema pglimit; grant all on schema pglimit to %s", "create domain pglimit.nanoseconds as bigint", "there is type pglimit.nanoseconds of role %s"},
		"a view":              {"create schema pglimit; grant all on schema pglimit to %s", "create view pglimit.buckets as select 1", "there is view pglimit.buckets of role %s"},
		"a sequence":          {"create schema pglimit; grant all on schema pglimit to %s", "create sequence pglimit.limits_id_seq", "there is sequence pglimit.limits_id_seq of role %s"},
		"a function replaced": {"UP", "create or replace function pglimit.mine() returns int language sql return 1", "there is function pglimit.mine() of role %s"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := newDatabase(t)
			admin, mallory := migrationPool(t, url), newRole(t, url)
			execute(t, admin, "grant create on database "+admin.Config().ConnConfig.Database+" to "+mallory)
			if test.admin == "UP" {
				must(t, migrations.Up(t.Context(), admin))
				test.admin = "grant all on schema pglimit to %s"
			}
			if test.admin != "" {
				execute(t, admin, fmt.Sprintf(test.admin, mallory))
			}
			execute(t, migrationPool(t, url, as(mallory)), test.mallory)
			before := catalogOf(t, admin)
			for _, err := range []error{migrations.Up(t.Context(), admin), migrations.DownTo(t.Context(), admin, 0), migrations.SetStorage(t.Context(), admin, migrations.Unlogged)} {
				wantLine(t, err, fmt.Sprintf(test.want, mallory))
			}
			diff(t, "afterwards, against before", before, catalogOf(t, admin))
		})
	}
}

// A member of the role that owns the schema migrates, and so does a superuser who takes that role.
func TestWhoHasTheOwnersRightsMigrates(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	admin, owner, member := migrationPool(t, url), newRole(t, url), newRole(t, url)
	execute(t, admin, fmt.Sprintf("grant create on database %s to %s, %s; grant %[2]s to %[3]s", admin.Config().ConnConfig.Database, owner, member))
	must(t, migrations.Up(t.Context(), migrationPool(t, url, as(owner)), migrations.WithoutExclusionRange()))
	wantLine(t, migrations.Up(t.Context(), admin), "schema pglimit of role "+owner)
	must(t, migrations.Up(t.Context(), migrationPool(t, url, as(member))))
	execute(t, admin, "reassign owned by "+member+" to "+owner)
	must(t, migrations.DownTo(t.Context(), migrationPool(t, url, as(owner)), 0))
}
