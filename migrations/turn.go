package migrations

import (
	"context"
	"fmt"
	"strings"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// takeTurn lets one process migrate at a time, until its transaction ends: it locks the version table, which takes the
// right to write it. (An advisory lock is any login's to take, and to keep.) Where the table is not there yet, making
// it, or the schema, is what the others wait for.
//
// Nobody who decides waits behind a migration that waits for its turn.
func takeTurn(ctx context.Context, tx rate.Session, o options) error {
	for tries := 0; ; {
		if err := checkOwners(ctx, tx); err != nil {
			return err
		}
		schema, err := ask(ctx, tx, schemaExists)
		table := false
		if err == nil {
			table, err = ask(ctx, tx, versionTableExists)
		}
		if err != nil {
			return fail("cannot read which migrations are applied", err)
		}
		var what, statement string
		switch {
		case table:
			what, statement = "cannot lock table "+versionTable, "lock table "+versionTable+" in share row exclusive mode"
		case !o.creates:
			return nil
		case schema:
			what, statement = "cannot create table "+versionTable, createVersionTable
		default: // "if not exists" takes the right to create schemas even if there is nothing to create
			what, statement = "cannot create schema pglimit", "create schema pglimit"
		}
		err = try(ctx, tx, statement)
		if err == nil && statement != "create schema pglimit" {
			return checkOwners(ctx, tx) // what was made before the lock
		}
		switch {
		case err == nil || ctx.Err() == nil && postgres.Is(err, postgres.InvalidSchemaName, postgres.UndefinedTable, duplicateTable, duplicateSchema, uniqueViolation):
			continue // another has made or removed it meanwhile
		case ctx.Err() != nil:
			return fail("waited in vain for another migration to end", err)
		case !postgres.Is(err, postgres.LockNotAvailable):
			return explain(ctx, tx, what, err)
		}
		if tries++; tries%10 == 1 {
			var of *string
			if table {
				of = &[]string{"goose_db_version"}[0]
			}
			var holders *string
			if err := tx.Row(ctx, lockHolders, []any{of, !table}, &holders); err != nil || holders == nil {
				holders = new(string)
			}
			o.log.WarnContext(ctx, "pglimit: waits for another migration to end", "holders", *holders)
		}
	}
}

// owners lists what is in the schema, and whose it is, unless that is a role that this one trusts: itself, one whose
// rights it has, a superuser. A superuser has the rights of all, so it trusts superusers only. For a role that could
// not have made the schema, it lists nothing: that role does not migrate, or is told by Postgres what it lacks.
const owners = `
	select coalesce(pg_catalog.array_agg(pg_catalog.concat(o.what, ' of role ', pg_catalog.quote_ident(r.rolname)) order by o.place, o.what), '{}'), current_user::pg_catalog.text
	from pg_catalog.pg_namespace n
	cross join lateral (
		select 0 as place, 'schema pglimit' as what, n.nspowner as owner
		union all
		select 1, pg_catalog.concat(case when c.relkind operator(pg_catalog.=) 'v' then 'view' when c.relkind operator(pg_catalog.=) 'S' then 'sequence' else 'table' end, ' pglimit.', c.relname), c.relowner
		from pg_catalog.pg_class c where c.relnamespace operator(pg_catalog.=) n.oid and c.relkind operator(pg_catalog.=) any (array['r', 'p', 'v', 'm', 'f', 'S']::pg_catalog."char"[])
		union all
		select 2, pg_catalog.format('function pglimit.%s(%s)', p.proname, pg_catalog.pg_get_function_identity_arguments(p.oid)), p.proowner
		from pg_catalog.pg_proc p where p.pronamespace operator(pg_catalog.=) n.oid
		union all
		select 3, pg_catalog.concat('type pglimit.', t.typname), t.typowner
		from pg_catalog.pg_type t where t.typnamespace operator(pg_catalog.=) n.oid and t.typrelid operator(pg_catalog.=) 0::pg_catalog.oid and t.typelem operator(pg_catalog.=) 0::pg_catalog.oid
	) o
	join pg_catalog.pg_roles r on r.oid operator(pg_catalog.=) o.owner
	join pg_catalog.pg_roles me on me.rolname operator(pg_catalog.=) current_user
	where n.nspname operator(pg_catalog.=) 'pglimit' and o.owner operator(pg_catalog.<>) me.oid and not r.rolsuper and case
		when me.rolsuper then true
		else pg_catalog.has_database_privilege(pg_catalog.current_database(), 'create') and not pg_catalog.pg_has_role(me.oid, o.owner, 'usage')
	end`

// checkOwners refuses a schema that holds what is another role's: see Up.
func checkOwners(ctx context.Context, db rate.Session) error {
	var others []string
	var me string
	if err := db.Row(ctx, owners, nil, &others, &me); err != nil {
		return fail("cannot read whose the schema is", err)
	}
	if len(others) == 0 {
		return nil
	}
	some := others[:min(5, len(others))]
	text := strings.Join(some, ", ")
	if more := len(others) - len(some); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Errorf("migrations: there is %s, and not of %s, who migrates: its owner could have others run code of its own: "+
		"if you trust that role, migrate as it (a superuser can: role=OWNER in the URL); else see what is there, and drop it ('drop schema pglimit cascade')", text, me)
}
