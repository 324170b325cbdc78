package migrations

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/pglimit/ratelimit/internal/handle"
	"github.com/pglimit/ratelimit/internal/schema"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// ErrDiffers: a table of the schema is not as this release makes it: somebody has changed it by hand, or it was made by
// an earlier build. The error names what differs.
var ErrDiffers = errors.New("migrations: the schema is not as this release makes it")

// Differences names the functions, columns, constraints, indexes and triggers that are missing or not as this release makes them.
// [Up] puts functions back, and returns an [ErrDiffers] for the rest. What others have added is none. There are
// none in a database that is not migrated, see [Pending], nor in one that a newer release has migrated.
func Differences[D DB](ctx context.Context, db D) ([]string, error) {
	applied, err := readApplied(ctx, handle.Of(db))
	if err != nil {
		return nil, err
	}
	return differences(ctx, handle.Of(db).Session(), applied)
}

func differences(ctx context.Context, db rate.Session, applied appliedList) (differ []string, err error) {
	if applied.highest() > latest() || len(options{withoutExclusionRange: true}.pending(applied)) > 0 {
		return nil, nil
	}
	optional := slices.ContainsFunc(known, func(m Migration) bool { return m.Optional && applied.has(m.Version) })
	if err := db.Row(ctx, "select "+schema.Differs, schema.Args(false, optional), &differ); err != nil {
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

var functionText = regexp.MustCompile(`(?ms)^create (?:or replace )?(function pglimit\.\w+)(\(.*?(?:\$\$;$|^end;$|^return [^;]*;$))`) //nolint:gocritic // lines begin and end in it

// repair makes the functions anew that are not as this release makes them, and returns what differs then.
func (s *session) repair(ctx context.Context, applied appliedList) (differ []string, err error) {
	for _, drop := range []bool{false, true} { // what cannot be replaced, because its result or a parameter is another
		differ, err = differences(ctx, s.tx, applied)
		if err != nil || !slices.ContainsFunc(differ, isFunction) {
			return differ, err
		}
		for _, m := range known {
			text, err := m.section(true)
			if err != nil {
				return nil, err
			}
			for _, f := range functionText.FindAllStringSubmatch(text, -1) {
				if !slices.Contains(differ, f[1]) {
					continue
				}
				statement := "create or replace " + f[1] + f[2]
				if drop {
					statement = fmt.Sprintf(dropAll, strings.TrimPrefix(f[1], "function pglimit.")) + statement
				}
				if err := try(ctx, s.tx, statement); err != nil && drop {
					return nil, explain(ctx, s.tx, "cannot put back "+f[1], err)
				}
			}
		}
		s.done = append(s.done, func() {
			s.log.WarnContext(ctx, "pglimit: functions were not this release's, and are put back", "differed", differ)
		})
	}
	return differences(ctx, s.tx, applied)
}

// dropAll drops the functions of a name, whatever their parameters.
const dropAll = `do $drop$ declare f text; begin
	for f in select p.oid::pg_catalog.regprocedure from pg_catalog.pg_proc p join pg_catalog.pg_namespace n on n.oid = p.pronamespace where n.nspname = 'pglimit' and p.proname = '%s' loop
		execute 'drop function ' || f;
	end loop;
end $drop$;
`
