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
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/ratelimit/internal/bucket"
	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

//go:embed *.sql
var files embed.FS

// SQLSTATE codes, see appendix A of the PostgreSQL manual.
const (
	exclusionViolation = "23P01"
	undefinedObject    = "42704"
)

// Create creates the schema of that name, which must not exist, with the tables of the three
// statements. The exclusion constraint needs the extension btree_gist in the database:
// pglimit's migrations create it.
func Create(ctx context.Context, session rate.Session, schema string) error {
	_, err := session.Exec(ctx, statement("schema.sql", schema))
	if postgres.Is(err, undefinedObject) {
		return fmt.Errorf("the published exclusion constraint needs the extension btree_gist: create extension btree_gist: %w", err)
	}
	return err
}

// Drop removes what [Create] made.
func Drop(ctx context.Context, session rate.Session, schema string) error {
	_, err := session.Exec(ctx, "drop schema if exists "+pgx.Identifier{schema}.Sanitize()+" cascade")
	return err
}

// Strategies returns the three statements for the tables in that schema, in the order of the
// write-up.
func Strategies(schema string) []rate.Strategy {
	first := nowait{
		statement("for_update_nowait_first.sql", schema), statement("for_update_nowait_lock.sql", schema),
		statement("for_update_nowait_update.sql", schema),
	}
	return []rate.Strategy{
		strategy{schema, "for_update_nowait", first.take},
		strategy{schema, "exclusion", single(statement("exclusion.sql", schema)).take},
		strategy{schema, "upsert", single(statement("upsert.sql", schema)).take},
	}
}

// statement returns the text of a .sql file as it is sent: without comment lines, and with the
// schema's name.
func statement(file, schema string) string {
	text, _ := files.ReadFile(file) // a wrong name is an empty statement, which each test meets
	return strings.ReplaceAll(postgres.Statement(string(text), ""), "$schema", pgx.Identifier{schema}.Sanitize())
}

// strategy decides by one table in the schema, with a burst of one.
type strategy struct {
	schema, table string

	// take returns the time of a grant, and whether a denial is contended. The zero time stands for a denial: none of
	// the statements tells when a denial was decided.
	take taking
}

type taking func(ctx context.Context, on rate.Session, key string, intervalUS int64) (time.Time, bool, error)

// Name is "published_" and the table's name.
func (s strategy) Name() string { return "published_" + s.table }

// Table is the qualified name of the table. The bench reads the table's statistics by it.
func (s strategy) Table() string { return s.schema + "." + s.table }

// Check takes limits with a burst of 1.
func (s strategy) Check(r *rate.Request) error {
	if burst := r.Limit.Burst; burst != 1 {
		return &rate.LimitError{Limit: r.Limit, Field: "Burst", Why: fmt.Sprintf("is %d: %s keeps a burst of 1 only", burst, s.Name())}
	}
	return rate.Unsupported(s.Name(), r)
}

// Rule is that of a token bucket.
func (strategy) Rule() rate.Rule { return bucket.Rule{} }

// Take decides the requests one by one.
func (s strategy) Take(ctx context.Context, session rate.Session, requests []rate.Request) ([]rate.Decision, error) {
	decisions := make([]rate.Decision, len(requests))
	for i, r := range requests {
		if err := cmp.Or(r.Validate(), s.Check(&r)); err != nil {
			return nil, err
		}
		if r.Tokens == 0 {
			return nil, fmt.Errorf("%s cannot peek", s.Name())
		}
		interval := (r.Limit.Token() + time.Microsecond - 1).Truncate(time.Microsecond)
		at, contended, err := s.take(ctx, session, r.Key, interval.Microseconds())
		if err != nil {
			return nil, err
		}
		decisions[i] = rate.Decision{At: at.UTC(), Contended: contended}
		if !at.IsZero() {
			decisions[i].Allowed, decisions[i].Granted = true, 1
		}
	}
	return decisions, nil
}

// single is the second or the third statement: it returns the time of a grant, and otherwise no row, or
// a violation of the constraint. A deadlock is an error, because nobody knows whether the request was due.
type single string

func (s single) take(ctx context.Context, session rate.Session, key string, intervalUS int64) (time.Time, bool, error) {
	var at time.Time
	err := session.Row(ctx, string(s), []any{key, intervalUS}, &at)
	if errors.Is(err, pgx.ErrNoRows) || postgres.Is(err, exclusionViolation) {
		return time.Time{}, false, nil
	}
	return at, false, err
}

// nowait is the first statement: begin, lock the row or give up, update, commit: four round trips. If
// another request holds the row, the denial is contended.
type nowait struct{ first, lock, update string }

func (s nowait) take(ctx context.Context, session rate.Session, key string, intervalUS int64) (time.Time, bool, error) {
	at, contended, err := s.once(ctx, session, key, intervalUS)
	if errors.Is(err, pgx.ErrNoRows) {
		if _, err = session.Exec(ctx, s.first, key); err == nil {
			at, contended, err = s.once(ctx, session, key, intervalUS)
		}
	}
	return at, contended, err
}

func (s nowait) once(ctx context.Context, session rate.Session, key string, intervalUS int64) (time.Time, bool, error) {
	var at time.Time
	contended := false
	err := session.OneConnection(ctx, func(conn rate.Session) error {
		if _, err := conn.Exec(ctx, "begin"); err != nil {
			return err
		}
		granted := false
		err := conn.Row(ctx, s.lock, []any{key, intervalUS}, &at, &granted)
		if err == nil && granted {
			_, err = conn.Exec(ctx, s.update, key)
		}
		if err == nil && granted {
			_, err = conn.Exec(ctx, "commit")
			return err
		}
		// A denial gets no time: at is when the transaction began, but the row was read later, and may
		// count grants that were made in between.
		at = time.Time{}
		_, failed := conn.Exec(ctx, "rollback")
		if postgres.Is(err, postgres.LockNotAvailable) {
			contended, err = true, nil
		}
		return cmp.Or(err, failed)
	})
	return at, contended, err
}
