package rows

import (
	"context"
	"fmt"
	"strings"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// ofShards marks the Cursor of a walk through the pages of all shards of a table that Citus distributes.
const ofShards rate.Cursor = 1 << 40

// sweptOfShard is how many rows were removed, and whether the shard ends there.
const sweptOfShard = "(select pg_catalog.count(*) from removed) as n, $2::bigint >= pg_catalog.pg_relation_size('$table') / pg_catalog.current_setting('block_size')::bigint as done, pg_catalog.set_config('synchronous_commit', 'off', true)"

// isDistributed says whether Citus distributes the table (see migrations.Distribute): it has no pages then, and its
// shards have.
func (t *Table) isDistributed(ctx context.Context, session rate.Session) (distributed bool, err error) {
	if !strings.HasPrefix(t.Name, "token_bucket") {
		return false, nil // no other table can be
	}
	err = session.Row(ctx, "select pg_catalog.to_regclass('pg_catalog.pg_dist_partition') is not null", nil, &distributed)
	if err == nil && distributed {
		err = session.Row(ctx, postgres.Statement("select exists (select from pg_catalog.pg_dist_partition where logicalrelid = pg_catalog.to_regclass('$table'))", t.Name), nil, &distributed)
	}
	return distributed, postgres.ExplainStep(err)
}

// onShards returns a statement that runs another one on each shard, see sql/on_shards.sql. That one names the table as
// $table, and ends with "select", after which columns is added: n and done. args are in the places of $1, $2 and so on.
func (t *Table) onShards(sql, columns string, args []any, into ...any) rate.Statement {
	sql = strings.ReplaceAll(sql, "%", "%%")
	columns = strings.ReplaceAll(columns, "%", "%%")
	text := strings.ReplaceAll(sql+" "+columns, "$table", "%1$s")
	for i, arg := range args {
		literal := fmt.Sprint(arg)
		if s, is := arg.(string); is {
			literal = "'" + strings.ReplaceAll(strings.ReplaceAll(s, "'", "''"), "%", "%%") + "'"
			if strings.Contains(s, `\`) {
				literal = " E" + strings.ReplaceAll(literal, `\`, `\\`) // whatever standard_conforming_strings is
			}
		}
		text = strings.ReplaceAll(text, fmt.Sprintf("$%d::", i+1), literal+"::")
	}
	return rate.Statement{SQL: postgres.StatementOf(files, "on_shards.sql", t.Name), Args: []any{"pglimit." + t.Name, text}, Into: into}
}

// resetShards removes every row of the limiter, one shard after another. It waits for rows that are locked.
func (t *Table) resetShards(ctx context.Context, session rate.Session, limiter string) (removed int64, err error) {
	var done bool
	var failed *string
	s := t.onShards("with removed as (delete from $table where limiter = $1::text returning 1) select", "pg_catalog.count(*) as n, true as done from removed", []any{limiter}, &removed, &done, &failed)
	if err = session.Row(ctx, s.SQL, s.Args, s.Into...); err != nil {
		return 0, postgres.ExplainStep(err)
	}
	if failed != nil {
		return removed, fmt.Errorf("pglimit: a shard could not be reset: %s", *failed)
	}
	// A shard that was moving has rows that were copied before. Citus knows where they are now.
	var moved int64
	err = session.Row(ctx, postgres.Statement("with removed as (delete from $table where limiter = $1::text returning 1) select pg_catalog.count(*) from removed", t.Name), []any{limiter}, &moved)
	return removed + moved, postgres.ExplainStep(err)
}
