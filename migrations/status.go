package migrations

import (
	"context"
	"slices"
	"time"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Status lists the migrations by version, and whether the database has them: all of this
// release, and the applied ones that only a newer release knows. It writes nothing, and
// needs no right but to read pglimit.goose_db_version, if that exists.
func Status[D DB](ctx context.Context, db D) ([]Migration, error) {
	applied, err := readApplied(ctx, postgres.On(db))
	if err != nil {
		return nil, err
	}
	out := slices.Clone(known)
	for _, a := range applied {
		i := slices.IndexFunc(out, func(m Migration) bool { return m.Version == a.Version })
		if i < 0 {
			i = len(out)
			out = append(out, a)
		}
		out[i].Applied, out[i].AppliedAt = true, a.AppliedAt
	}
	slices.SortStableFunc(out, func(a, b Migration) int { return int(a.Version - b.Version) })
	return out, nil
}

// Pending lists the migrations that [Up], called with the same options, would apply, in
// that order. Like [Status] it only reads. It is for services that do not migrate by
// themselves.
func Pending[D DB](ctx context.Context, db D, opts ...Option) ([]Migration, error) {
	applied, err := readApplied(ctx, postgres.On(db))
	if err != nil {
		return nil, err
	}
	return newOptions(opts).pending(applied), nil
}

// appliedList is what a database has, in the order in which it was applied.
type appliedList []Migration

func (l appliedList) has(version int64) bool {
	return slices.ContainsFunc(l, func(m Migration) bool { return m.Version == version })
}

func (l appliedList) highest() int64 {
	var highest int64
	for _, m := range l {
		highest = max(highest, m.Version)
	}
	return highest
}

func (l appliedList) above(version int64) appliedList {
	return slices.DeleteFunc(slices.Clone(l), func(m Migration) bool { return m.Version <= version })
}

// readApplied reads, without the lock, which migrations the database has.
func readApplied(ctx context.Context, db rate.Session) (appliedList, error) {
	if db == nil {
		return nil, errNoPool
	}
	applied, err := queryApplied(ctx, db)
	if postgres.Is(err, postgres.UndefinedTable) {
		// A DownTo removed the table between the two queries of queryApplied.
		return nil, nil
	}
	if err != nil {
		return nil, explain(ctx, db, "cannot read which migrations are applied", err)
	}
	return applied, nil
}

// queryApplied looks into the catalog first: reading a table that does not exist would be
// an error, which would end the transaction and be noise in the server's log.
func queryApplied(ctx context.Context, db rate.Session) (appliedList, error) {
	there, err := ask(ctx, db, versionTableExists)
	if err == nil && !there {
		err = notAWorker(ctx, db)
	}
	if err != nil || !there {
		return nil, err
	}
	// The time as a number: as text it depends on the role's DateStyle.
	var versions, microseconds []int64
	err = db.Row(ctx, `
		select pg_catalog.array_agg(version_id order by id), pg_catalog.array_agg((extract(epoch from tstamp) * 1000000.0)::bigint order by id)
		from pglimit.goose_db_version where version_id > 0 and is_applied`, nil, &versions, &microseconds)
	var applied appliedList
	for i, version := range versions {
		applied = append(applied, Migration{Version: version, Applied: true, AppliedAt: time.UnixMicro(microseconds[i]).UTC()})
	}
	return applied, err
}

// Questions that the catalog answers to every role, whatever its rights.
const (
	schemaExists       = `select exists (select from pg_catalog.pg_namespace where nspname = 'pglimit')`
	versionTableExists = `select exists (
		select from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
		where n.nspname = 'pglimit' and c.relname = 'goose_db_version')`
	btreeGistExists = `select exists (select from pg_catalog.pg_extension where extname = 'btree_gist')`
	mayCreateSchema = `select pg_catalog.has_database_privilege(pg_catalog.current_database(), 'create')`
)

func ask(ctx context.Context, db rate.Session, question string) (yes bool, err error) {
	err = db.Row(ctx, question, nil, &yes)
	return yes, err
}
