// Package published has the three statements of the write-up that pglimit grew out of,
// as they were published. "pglimit bench --published" and the tests compare them with the
// strategies. They are for comparison only:
//
//   - published_for_update_nowait: SELECT ... FOR UPDATE NOWAIT, then UPDATE. Keeps
//     the limit; four round trips, and every denial locks the row.
//   - published_exclusion: INSERT under an exclusion constraint whose violation is the
//     denial. Deadlocks under load.
//   - published_upsert: INSERT ... ON CONFLICT DO UPDATE ... WHERE ... RETURNING. Keeps
//     the limit; every denial locks the row and costs a transaction id and WAL.
//
// All three keep only a burst of one: two granted requests are at least an interval apart.
package published

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/ratelimit/internal/bucket"
	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// SQLSTATE codes, see appendix A of the PostgreSQL manual.
const (
	exclusionViolation = "23P01"
	undefinedObject    = "42704"
)

//go:embed schema.sql
var schemaFile string

// Create creates the schema of that name, which must not exist, with the tables of the three
// statements. The exclusion constraint needs the extension btree_gist in the database:
// pglimit's migrations create it.
func Create(ctx context.Context, session rate.Session, schema string) error {
	_, err := session.Exec(ctx, statement(schemaFile, schema))
	if postgres.Is(err, undefinedObject) {
		return fmt.Errorf("the published exclusion constraint needs the extension btree_gist: create extension btree_gist: %w", err)
	}
	return err
}

// Drop removes what [Create] made.
func Drop(ctx context.Context, session rate.Session, schema string) error {
	_, err := session.Exec(ctx, statement("drop schema if exists $schema cascade", schema))
	return err
}

// Strategies returns the three statements for the tables in that schema, in the order of the
// write-up.
func Strategies(schema string) []rate.Strategy {
	return []rate.Strategy{NewForUpdateNowait(schema), NewExclusion(schema), NewUpsert(schema)}
}

// statement returns the text of a .sql file as it is sent: without comment lines, and with the
// schema's name.
func statement(file, schema string) string {
	return strings.ReplaceAll(postgres.Statement(file, ""), "$schema", pgx.Identifier{schema}.Sanitize())
}

// table is the common part of the three: the name of a table in the schema, and a burst of one.
type table struct {
	schema, table string
}

// Name is "published_" and the table's name.
func (t table) Name() string { return "published_" + t.table }

// Table is the qualified name of the table. The bench reads the table's statistics by it.
func (t table) Table() string { return t.schema + "." + t.table }

// Check takes limits with a burst of 1.
func (t table) Check(r *rate.Request) error {
	if burst := r.Limit.Burst; burst != 1 {
		return &rate.LimitError{Limit: r.Limit, Field: "Burst", Why: fmt.Sprintf("is %d: %s keeps a burst of 1 only", burst, t.Name())}
	}
	return rate.Unsupported(t.Name(), r)
}

// Rule is that of a token bucket.
func (t table) Rule() rate.Rule { return bucket.Rule{} }

// takeEach decides the requests one by one. The At of a denial is zero: none of the statements
// tells when the denial was decided.
func (t table) takeEach(requests []rate.Request, take func(r rate.Request, intervalUS int64) (granted bool, d rate.Decision, err error)) ([]rate.Decision, error) {
	decisions := make([]rate.Decision, len(requests))
	for i, r := range requests {
		if err := r.Validate(); err != nil {
			return nil, err
		}
		if err := t.Check(&r); err != nil {
			return nil, err
		}
		if r.Tokens == 0 {
			return nil, fmt.Errorf("%s cannot peek", t.Name())
		}
		interval := (r.Limit.Token() + time.Microsecond - 1).Truncate(time.Microsecond)
		granted, d, err := take(r, interval.Microseconds())
		if err != nil {
			return nil, err
		}
		if granted {
			d.Allowed, d.Granted = true, 1
		}
		d.At = d.At.UTC()
		decisions[i] = d
	}
	return decisions, nil
}

// scanTime sends a statement that returns one time if the request is granted, and otherwise no row.
func scanTime(ctx context.Context, session rate.Session, sql string, args ...any) (at time.Time, granted bool, err error) {
	err = session.Row(ctx, sql, args, &at)
	if errors.Is(err, pgx.ErrNoRows) {
		return at, false, nil
	}
	return at, err == nil, err
}
