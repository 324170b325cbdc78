package bench

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// statements are the counters of pg_stat_statements for this database, by statement. Nil:
// it is not there.
type statements map[int64]result.Statement

// readStatements reads the extension's counters. Most servers have it, in a schema of the owner's choice; the role may
// lack the right to read it.
func readStatements(ctx context.Context, observer *pgxpool.Pool) statements {
	var schema string
	err := observer.QueryRow(ctx, `
		select n.nspname::text from pg_catalog.pg_extension e join pg_catalog.pg_namespace n on n.oid = e.extnamespace
		where e.extname = 'pg_stat_statements'`).Scan(&schema)
	if err != nil {
		return nil
	}
	rows, err := observer.Query(ctx, fmt.Sprintf(`
		select queryid, min(query), sum(calls)::bigint, sum(total_exec_time)
		from %s.pg_stat_statements
		where dbid = (select oid from pg_catalog.pg_database where datname = current_database()) and queryid is not null
			and query not like '%%pg_current_wal_insert_lsn%%' -- that is ours
		group by queryid`, pgx.Identifier{schema}.Sanitize()))
	if err != nil {
		return nil
	}
	read := statements{}
	var id int64
	var s result.Statement
	_, err = pgx.ForEachRow(rows, []any{&id, &s.Query, &s.Calls, &s.TotalMS}, func() error {
		read[id] = s
		return nil
	})
	if err != nil {
		return nil
	}
	return read
}

// most is how many statements a run reports.
const most = 3

// since returns the statements that took most time between two readings.
func (s statements) since(before statements) (top []result.Statement) {
	for id, after := range s {
		one := result.Statement{Query: after.Query, Calls: after.Calls - before[id].Calls, TotalMS: round(after.TotalMS-before[id].TotalMS, 1)}
		if one.Calls <= 0 || one.TotalMS <= 0 {
			continue
		}
		one.MeanUS = round(1000*one.TotalMS/float64(one.Calls), 1)
		top = append(top, one)
	}
	slices.SortFunc(top, func(a, b result.Statement) int { return cmp.Compare(b.TotalMS, a.TotalMS) })
	return top[:min(len(top), most)]
}
