package migrations

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// ErrDiffers: a table of the schema is not as this release makes it: somebody has changed it by hand, or it was made by
// an earlier build. The error names what differs.
var ErrDiffers = errors.New("migrations: the schema is not as this release makes it")

// Differences names the functions, columns, constraints, indexes and triggers that are missing or not as this release
// makes them.
// [Up] puts functions back, and returns an [ErrDiffers] for the rest. What others have added is none. There are
// none in a database that is not migrated, see [Pending], nor in one that a newer release has migrated.
func Differences[D DB](ctx context.Context, db D) ([]string, error) {
	on := postgres.On(db)
	applied, err := readApplied(ctx, on)
	if err != nil {
		return nil, err
	}
	return differences(ctx, on, applied)
}

func differences(ctx context.Context, db rate.Session, applied appliedList) (differ []string, err error) {
	if applied.highest() > latest() || len(options{withoutExclusionRange: true}.pending(applied)) > 0 {
		return nil, nil
	}
	optional := slices.ContainsFunc(known, func(m Migration) bool { return m.Optional && applied.has(m.Version) })
	if err := db.Row(ctx, "select "+postgres.Differs, postgres.DiffersArgs(false, optional), &differ); err != nil {
		return nil, fail("cannot compare the schema with this release's", err)
	}
	return differ, nil
}

func isFunction(name string) bool { return strings.HasPrefix(name, "function ") }

func errDiffers(differ []string) error {
	differ = slices.DeleteFunc(slices.Clone(differ), isFunction)
	if len(differ) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s: change that by hand to what 'pglimit migrate sql' prints, or, if all rows may go, migrate down to 0 and up again",
		ErrDiffers, strings.Join(differ, ", "))
}

var functionText = regexp.MustCompile(`(?ms)^create (?:or replace )?function pglimit\.(\w+)(\(.*?(?:\$\$;$|^end;$|^(?:language sql[^;$]* )?return [^;]*;$))`) //nolint:gocritic // lines begin and end in it

// distributedFunctions are those that are put in place of others, or beside them, where Citus distributes the tables.
//
//go:embed distributed.sql
var distributedFunctions string

// marker is the function that only a schema with these functions has: see internal/postgres/differs.sql.
const marker = "on_shards"

// function is the text of one function.
type function struct{ name, text string }

// functionsOf are those that a text makes.
func functionsOf(text string) (out []function) {
	for _, f := range functionText.FindAllStringSubmatch(text, -1) {
		out = append(out, function{f[1], "create or replace function pglimit." + f[1] + f[2]})
	}
	return out
}

// ownFunctions are those of this release, in an order in which they can be made.
func ownFunctions(distributed bool) (out []function) {
	for _, m := range known {
		out = append(out, functionsOf(m.section(true))...)
	}
	if !distributed {
		return out
	}
	for _, f := range functionsOf(distributedFunctions) {
		if i := slices.IndexFunc(out, func(o function) bool { return o.name == f.name }); i >= 0 {
			out[i] = f
		} else {
			out = append(out, f)
		}
	}
	return out
}

// putFunctions makes the functions anew that are not as this release makes them. It returns which they were, and what
// differs then.
func (s *session) putFunctions(ctx context.Context, applied appliedList, distributed bool) (put, differ []string, err error) {
	for _, drop := range []bool{false, true} { // what cannot be replaced, because its result or a parameter is another
		differ, err = differences(ctx, s.tx, applied)
		if err != nil || !slices.ContainsFunc(differ, isFunction) {
			return put, differ, err
		}
		put = differ
		for _, f := range ownFunctions(distributed) {
			if !slices.Contains(differ, "function pglimit."+f.name) {
				continue
			}
			if drop {
				f.text = fmt.Sprintf(dropAll, f.name) + f.text
			}
			if failed := try(ctx, s.tx, f.text); failed != nil && drop {
				return nil, nil, explain(ctx, s.tx, "cannot put back function pglimit."+f.name, failed)
			}
		}
	}
	differ, err = differences(ctx, s.tx, applied)
	return put, differ, err
}

// dropAll drops the functions of a name, whatever their parameters.
const dropAll = `do $drop$ declare f text; begin
	for f in select p.oid::pg_catalog.regprocedure from pg_catalog.pg_proc p join pg_catalog.pg_namespace n on n.oid = p.pronamespace where n.nspname = 'pglimit' and p.proname = '%s' loop
		execute 'drop function ' || f;
	end loop;
end $drop$;
`
