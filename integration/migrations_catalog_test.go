package integration

import (
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/migrations"
	"github.com/pglimit/ratelimit/strategies"
)

// catalogOf describes everything in schema pglimit, a line for each thing: tables
// with their options, columns with type and collation, constraints, indexes, views,
// functions with their bodies, types, comments, rights. Of an extension it has the
// name only.
func catalogOf(t *testing.T, pool *pgxpool.Pool) []string {
	t.Helper()
	return texts(t, pool, `
		with mine as (select oid from pg_namespace where nspname = 'pglimit'),
		member as (select classid, objid from pg_depend where deptype = 'e')
		select concat_ws(' ', 'relation', c.relname, c.relkind, c.relpersistence, c.relreplident, c.reloptions, c.relacl, obj_description(c.oid, 'pg_class'))
		from pg_class c where c.relnamespace in (select oid from mine)
		union all
		select concat_ws(' ', 'column', c.relname, row_number() over (partition by a.attrelid order by a.attnum), a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity,
			a.attcollation::regcollation, pg_get_expr(d.adbin, d.adrelid), col_description(c.oid, a.attnum))
		from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
			left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
		where c.relnamespace in (select oid from mine)
		union all
		select concat_ws(' ', 'constraint', conrelid::regclass, conname, pg_get_constraintdef(oid))
		from pg_constraint where connamespace in (select oid from mine) and contype <> 'n' -- PostgreSQL 18 names these anew in a dump
		union all
		select concat_ws(' ', 'index', pg_get_indexdef(i.indexrelid), c.reloptions)
		from pg_index i join pg_class c on c.oid = i.indexrelid where c.relnamespace in (select oid from mine)
		union all
		select concat_ws(' ', 'view', c.relname, pg_get_viewdef(c.oid))
		from pg_class c where c.relnamespace in (select oid from mine) and c.relkind = 'v'
		union all
		select concat_ws(' ', 'function', pg_get_functiondef(p.oid), p.proacl, obj_description(p.oid, 'pg_proc'))
		from pg_proc p
		where p.pronamespace in (select oid from mine) and p.prokind <> 'a' and ('pg_proc'::regclass, p.oid) not in (select classid, objid from member)
		union all
		select concat_ws(' ', 'type', t.typname, t.typtype, t.typcategory, format_type(nullif(t.typbasetype, 0), t.typtypmod), t.typacl)
		from pg_type t
		where t.typnamespace in (select oid from mine) and ('pg_type'::regclass, t.oid) not in (select classid, objid from member)
		union all
		select concat_ws(' ', 'trigger', pg_get_triggerdef(g.oid))
		from pg_trigger g join pg_class c on c.oid = g.tgrelid where c.relnamespace in (select oid from mine)
		union all
		select concat_ws(' ', 'schema', nspname, nspacl, obj_description(oid, 'pg_namespace')) from pg_namespace where nspname = 'pglimit'
		union all
		select concat_ws(' ', 'extension', e.extname, e.extnamespace::regnamespace) from pg_extension e
		union all
		select concat_ws(' ', 'migration', version_id, is_applied)
		from (select (xpath('/row/version_id/text()', x))[1]::text as version_id, (xpath('/row/is_applied/text()', x))[1]::text as is_applied
			from pg_class c join mine on c.relnamespace = mine.oid,
				unnest(xpath('/table/row', query_to_xml('select version_id, is_applied from pglimit.goose_db_version', true, false, ''))) x
			where c.relname = 'goose_db_version') v
		order by 1`)
}

// objectsOf names what the whole database holds beside Postgres's own.
func objectsOf(t *testing.T, pool *pgxpool.Pool) []string {
	t.Helper()
	execute(t, pool, `create extension if not exists btree_gist`) // the database's, which down leaves there
	return texts(t, pool, `
		select 'schema ' || nspname from pg_namespace where nspname !~ '^pg_(toast|temp)'
		union all select 'relation ' || oid::regclass from pg_class where relnamespace <> 'pg_toast'::regnamespace
		union all select 'type ' || oid::regtype from pg_type where typnamespace <> 'pg_toast'::regnamespace
		union all select 'function ' || oid::regprocedure from pg_proc
		union all select 'extension ' || extname from pg_extension
		union all select 'operator class ' || opcname || ' ' || opcmethod from pg_opclass
		union all select 'comment ' || description from pg_description
		order by 1`)
}

func TestEachStepDownAndUpAgainLeavesTheSameSchema(t *testing.T) {
	t.Parallel()
	pool := migrationPool(t, newDatabase(t))
	empty := objectsOf(t, pool)
	must(t, migrations.Up(t.Context(), pool))
	whole := catalogOf(t, pool)
	status, err := migrations.Status(t.Context(), pool)
	must(t, err)

	for _, s := range strategies.All() {
		take(t, pool, s, "k", hours)
	}
	for i := len(status) - 1; i >= 0; i-- {
		must(t, migrations.DownTo(t.Context(), pool, status[i].Version-1))
		if i > 0 {
			fresh := migrationPool(t, newDatabase(t))
			execute(t, fresh, `create extension btree_gist`)
			text, err := migrations.Span{To: status[i].Version - 1}.SQL()
			must(t, err)
			execute(t, fresh, text)
			diff(t, "down to before "+status[i].Name+", against up to there", catalogOf(t, fresh), catalogOf(t, pool))
		}
		left := texts(t, pool, "select relname::text from pg_class where relnamespace = to_regnamespace('pglimit') and relkind = 'r'")
		must(t, migrations.Up(t.Context(), pool))
		diff(t, "down to before "+status[i].Name+" and up", whole, catalogOf(t, pool))
		pool.Reset() // a prepared statement fails once if its result is of a table that was made anew
		for _, s := range strategies.All() {
			if d := take(t, pool, s, "k", hours); d.Allowed == slices.Contains(left, s.Name()) {
				t.Errorf("down to before %s and up: %s, of the tables %v that were left, gives %+v", status[i].Name, s.Name(), left, d)
			}
		}
	}
	for i := len(status) - 1; i >= 0; i-- {
		must(t, migrations.Down(t.Context(), pool))
		left, err := migrations.Status(t.Context(), pool)
		must(t, err)
		left = slices.DeleteFunc(left, func(m migrations.Migration) bool { return !m.Applied })
		if len(left) != i {
			t.Errorf("%d migrations are left of %d after a step down", len(left), i+1)
		}
	}
	diff(t, "after the last step down", empty, objectsOf(t, pool))
	must(t, migrations.Down(t.Context(), pool)) // nothing left to undo
}

// A goose of one's own that has migrated down, or not yet up.
func TestVersionTableWithNothingAppliedGoesOnlyWithDownToZero(t *testing.T) {
	t.Parallel()
	pool := migrationPool(t, newDatabase(t))
	empty := objectsOf(t, pool)
	execute(t, pool, `
		create schema pglimit;
		create table pglimit.goose_db_version (id integer primary key generated by default as identity,
			version_id bigint not null, is_applied boolean not null, tstamp timestamp not null default now());
		insert into pglimit.goose_db_version (version_id, is_applied) values (0, true)`)
	before := objectsOf(t, pool)
	must(t, migrations.Down(t.Context(), pool))
	diff(t, "after Down", before, objectsOf(t, pool))
	must(t, migrations.DownTo(t.Context(), pool, 3))
	diff(t, "after DownTo 3", before, objectsOf(t, pool))
	must(t, migrations.DownTo(t.Context(), pool, 0))
	diff(t, "after DownTo 0", empty, objectsOf(t, pool))
}

func TestSQLTextMakesWhatUpMakes(t *testing.T) {
	t.Parallel()
	byUp, byText := migrationPool(t, newDatabase(t)), migrationPool(t, newDatabase(t))
	empty := objectsOf(t, byText)
	must(t, migrations.Up(t.Context(), byUp))

	up, err := migrations.Span{}.SQL()
	must(t, err)
	execute(t, byText, up)
	diff(t, "after the text, against after Up", catalogOf(t, byUp), catalogOf(t, byText))
	must(t, migrations.Up(t.Context(), byText))
	diff(t, "after Up on the text", catalogOf(t, byUp), catalogOf(t, byText))

	down, err := migrations.Span{Down: true}.SQL()
	must(t, err)
	execute(t, byText, down)
	diff(t, "after the text for down, against before", empty, objectsOf(t, byText))
	execute(t, byUp, down)
	diff(t, "after the text for down on what Up made", empty, objectsOf(t, byUp))
}

// Those who may not have btree_gist cut the text at the mark.
func TestSQLTextWithoutTheOptionalPart(t *testing.T) {
	t.Parallel()
	byUp, byText := migrationPool(t, newDatabase(t)), migrationPool(t, newDatabase(t))
	must(t, migrations.Up(t.Context(), byUp, migrations.WithoutExclusionRange()))
	text, err := migrations.Span{}.SQL()
	must(t, err)
	required, _, marked := strings.Cut(text, "-- ======== Optional")
	if !marked {
		t.Fatal("no mark in the text")
	}
	execute(t, byText, required)
	diff(t, "after the text, against after Up", catalogOf(t, byUp), catalogOf(t, byText))
}

// Each version by itself, in the order of versions, as other tools run them.
func TestFilesForOtherToolsMakeWhatUpMakes(t *testing.T) {
	t.Parallel()
	byUp := migrationPool(t, newDatabase(t))
	must(t, migrations.Up(t.Context(), byUp))
	want := catalogOf(t, byUp)
	for _, format := range migrations.Formats() {
		t.Run(string(format), func(t *testing.T) {
			t.Parallel()
			pool := migrationPool(t, newDatabase(t))
			empty := objectsOf(t, pool)
			files, err := migrations.Span{}.Files(format)
			must(t, err)
			var downs []string
			for _, f := range files {
				up, down, _ := strings.Cut(f.Text, "-- +goose Down\n")
				if strings.HasSuffix(f.Name, ".down.sql") {
					up, down = "", f.Text
				}
				execute(t, pool, up)
				downs = append(downs, down)
			}
			diff(t, "after the files, against after Up", want, catalogOf(t, pool))
			must(t, migrations.Up(t.Context(), pool))
			diff(t, "after Up on that", want, catalogOf(t, pool))

			if format == migrations.Flyway {
				undo, err := migrations.Span{Down: true}.Files(format)
				must(t, err)
				for _, f := range undo {
					downs = append(downs, f.Text)
				}
			}
			if strings.Join(downs, "") == "" {
				return // Atlas has none
			}
			for _, down := range slices.Backward(downs) {
				execute(t, pool, down)
			}
			diff(t, "after the files for down, against before", empty, objectsOf(t, pool))
		})
	}
}

// A function that looks names up in the caller's search_path can be made to do
// something else, or fail. A body bound at its creation looks nothing up.
func TestEveryFunctionPinsItsSearchPath(t *testing.T) {
	t.Parallel()
	pool := migrationPool(t, newDatabase(t))
	must(t, migrations.Up(t.Context(), pool))
	const mine = `from pg_proc p where p.pronamespace = 'pglimit'::regnamespace
		and not exists (select from pg_depend d where d.classid = 'pg_proc'::regclass and d.objid = p.oid and d.deptype = 'e')`
	if all := texts(t, pool, `select p.proname::text `+mine); len(all) < 6 {
		t.Fatalf("only %v", all)
	}
	for _, f := range texts(t, pool, `select p.oid::regprocedure::text `+mine+`
		and p.prosqlbody is null and not coalesce(p.proconfig::text like '%search_path=%', false)`) {
		t.Errorf("%s does not pin its search_path", f)
	}
	// A take names the key first: a table can be distributed by it.
	for _, f := range texts(t, pool, `select p.proname::text `+mine+` and p.proname like '%\_take%' and p.proargnames[1] not like '\_key%'`) {
		t.Errorf("%s does not have the key as its first parameter", f)
	}
}

func TestTablesKeepTheSchemaRules(t *testing.T) {
	t.Parallel()
	pool := migrationPool(t, newDatabase(t))
	must(t, migrations.Up(t.Context(), pool))

	for table, fillfactor := range map[string]string{
		"token_bucket": "fillfactor=90", // and its rows bring padding
		"upsert":       "fillfactor=50", "for_update_nowait": "fillfactor=50", "token_bucket_blocks": "fillfactor=50", "permits": "fillfactor=50", "sliding_window": "fillfactor=50", "sliding_log": "fillfactor=50", "warm_up": "fillfactor=50",
	} {
		// Updates stay in their page and touch no index: a part of the page is free, and
		// nothing is indexed but the primary key, which no take changes.
		if options := texts(t, pool, `select unnest(reloptions) from pg_class where oid = $1::text::regclass`, "pglimit."+table); !slices.Contains(options, fillfactor) {
			t.Errorf("%s has options %v, not %s", table, options, fillfactor)
		}
		if indexes := texts(t, pool, `select pg_get_indexdef(indexrelid) from pg_index where indrelid = $1::text::regclass`, "pglimit."+table); len(indexes) != 1 ||
			!strings.HasSuffix(indexes[0], "USING btree (key, limiter)") {
			t.Errorf("%s has indexes %q, not the primary key (key, limiter) alone", table, indexes)
		}
		if table == "token_bucket_blocks" || table == "permits" || strings.HasPrefix(table, "sliding_") || table == "warm_up" {
			continue // it counts, or lists, too
		}
		// The state is a few whole numbers, and no more.
		want := []string{"key", "limiter", "full_ns", "token_ns", "at_ns"}
		if table == "token_bucket" {
			want = append(want, "leased_ns", "until_ns", "paused_ns", "padding")
		}
		if columns := texts(t, pool, `select attname from pg_attribute where attrelid = $1::text::regclass and attnum > 0 and not attisdropped order by attnum`, "pglimit."+table); !slices.Equal(columns, want) {
			t.Errorf("%s has columns %q, want %q", table, columns, want)
		}
		for _, column := range texts(t, pool, `select attname || ' ' || atttypid::regtype from pg_attribute
			where attrelid = $1::text::regclass and attnum > 0 and atttypid not in ('text'::regtype, 'pglimit.nanoseconds'::regtype)`, "pglimit."+table) {
			t.Errorf("%s: column %s is neither text nor nanoseconds", table, column)
		}
	}
	if indexes := texts(t, pool, `select pg_get_indexdef(indexrelid) from pg_index where indrelid = 'pglimit.exclusion_range'::regclass`); len(indexes) != 1 ||
		!strings.HasSuffix(indexes[0], "USING gist (key, limiter, during)") {
		t.Errorf("exclusion_range has indexes %q, not that of its constraint alone, key first", indexes)
	}
	// Nor do the tables of decisions count or compare by anything else; those of limits do, for people.
	for _, thing := range texts(t, pool, `
		select 'trigger ' || tgname from pg_trigger g join pg_class c on c.oid = g.tgrelid where c.relnamespace = 'pglimit'::regnamespace and c.relname not like 'limits%'
		union all
		select 'sequence ' || relname from pg_class where relnamespace = 'pglimit'::regnamespace and relkind = 'S' and relname not like 'goose\_db\_version%' and relname not like 'limits\_%'
		union all
		select 'not by the bytes: ' || c.relname || '.' || a.attname
		from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0
		where c.relnamespace = 'pglimit'::regnamespace and c.relkind = 'r' and a.attcollation not in (0, '"C"'::regcollation)
			and a.attname not in ('note', 'by', 'role', 'changed_by')`) {
		t.Error(thing)
	}
}
