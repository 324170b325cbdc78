// Package limits changes the limits in the table pglimit.limits, which services read with pglimit.LimitsFrom. It is for
// operators and their tools: a role needs the rights that "pglimit migrate grants ROLE --for limits" prints. The command
// "pglimit limits" is made of it, and every function of it is one call of a function in SQL, which psql can call too.
//
// Every change is recorded, with who and why, in a history that such a role cannot change.
package limits

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// DB is what an application has: a *pgxpool.Pool, or a *sql.DB with pgx's driver, github.com/jackc/pgx/v5/stdlib, or
// with github.com/lib/pq.
type DB interface{ postgres.DB }

// Table is the table pglimit.limits. It is safe for concurrent use. A change waits for those of other transactions, and
// holds in services within two seconds of its commit, and in semaphores from the next acquire on. Errors are pglimit.ErrNotMigrated, pglimit.ErrPermission,
// pglimit.ErrReadOnly and [ErrNoRule], which errors.Is tells apart, or Postgres's own. After any of them nothing was changed, but
// if the connection broke before the answer, that is not known.
type Table struct{ session rate.Session }

// New is the Table in a database. It asks Postgres nothing yet. db must not be nil.
func New[D DB](db D) *Table {
	return On(postgres.On(db))
}

// On is the Table in a session of the caller's, which pglimit.InTx and its like make: changes hold when the
// transaction commits, and until then every other change waits.
func On(session rate.Session) *Table { return &Table{session} }

// Set sets the rule for its keys, and returns the one that it replaced, or nil. A rule with the action Observe, Off or
// Places stands beside the others for the same keys, and replaces only its like. A rule that Expires replaces only one that does.
func (t *Table) Set(ctx context.Context, rule Rule) (replaced *Rule, err error) {
	var expires *time.Time
	if !rule.Expires.IsZero() {
		expires = &rule.Expires
	}
	return t.change(ctx, `select pglimit.set_limit($1::text, $2::text, key => $3::text, prefix => $4::text, action => $5::text, max_wait => $6::text,
		note => $7::text, enabled => $8::boolean, expires_at => $9::timestamptz, by => $10::text)::text`,
		null(rule.Limiter), null(rule.Limit), null(rule.Key), null(rule.Prefix), rule.Action.String(), null(rule.MaxWait),
		rule.Note, !rule.Disabled, expires, null(rule.By))
}

// Delete removes the rule for the keys of this one, if that is of the same [Rule.Kind], and returns it, or nil if there is
// none. Of two it is the temporary one, until it expires, and the permanent one holds again; but if they are Off, both go. Of the rule only Limiter, Key, Prefix, the kind of the Action, Note (why; required) and By are read.
func (t *Table) Delete(ctx context.Context, rule Rule) (removed *Rule, err error) {
	return t.change(ctx, "select pglimit.delete_limit($1::text, key => $2::text, prefix => $3::text, kind => $4::text, note => $5::text, by => $6::text)::text",
		null(rule.Limiter), null(rule.Key), null(rule.Prefix), rule.Kind(), rule.Note, null(rule.By))
}

// Enable enables a rule that was disabled, and returns it as it was before, or nil if there is none. It reads what [Table.Delete]
// reads, and of two rules is for the same one; the Note becomes that of the rule. A rule that is enabled already is left alone.
func (t *Table) Enable(ctx context.Context, rule Rule) (before *Rule, err error) {
	return t.enable(ctx, rule, true)
}

// Disable makes a rule as if it were not there, whatever is wrong with it. Else it is as [Table.Enable].
func (t *Table) Disable(ctx context.Context, rule Rule) (before *Rule, err error) {
	return t.enable(ctx, rule, false)
}

func (t *Table) enable(ctx context.Context, rule Rule, on bool) (*Rule, error) {
	return t.change(ctx, "select pglimit.enable_limit($1::text, $2::boolean, key => $3::text, prefix => $4::text, kind => $5::text, note => $6::text, by => $7::text)::text",
		null(rule.Limiter), on, null(rule.Key), null(rule.Prefix), rule.Kind(), rule.Note, null(rule.By))
}

// row sends a statement. Where transactions are above READ COMMITTED by default, Postgres undoes it if another one was
// faster: it is sent again until ctx ends.
func (t *Table) row(ctx context.Context, sql string, args []any, into ...any) error {
	return explain(postgres.Serialized(ctx, t.session, func() error { return t.session.Row(ctx, sql, args, into...) }))
}

// change calls a function that returns the row as it was.
func (t *Table) change(ctx context.Context, sql string, args ...any) (*Rule, error) {
	var before *string
	if err := t.row(ctx, sql, args, &before); err != nil {
		return nil, err
	}
	if before == nil {
		return nil, nil //nolint:nilnil // there was no rule, which is no error
	}
	var r row
	if err := json.Unmarshal([]byte(*before), &r); err != nil {
		return nil, err
	}
	return r.rule(), nil
}

// Now is the database's clock, by which rules expire.
func (t *Table) Now(ctx context.Context) (now time.Time, err error) {
	err = t.row(ctx, "select pg_catalog.clock_timestamp()", nil, &now)
	return now.UTC(), err
}

// List returns all rules, those that are disabled or have expired too, as of one moment: sorted by limiter, and then as they
// are looked at for a key. [Table.Import] takes them.
func (t *Table) List(ctx context.Context) ([]Rule, error) {
	var now time.Time
	var answer string
	err := t.row(ctx, "select pg_catalog.clock_timestamp(), coalesce(pg_catalog.jsonb_agg(pg_catalog.to_jsonb(l.*)), '[]')::text from pglimit.limits l", nil, &now, &answer)
	if err != nil {
		return nil, err
	}
	var rows []row
	if err := json.Unmarshal([]byte(answer), &rows); err != nil {
		return nil, err
	}
	rules := make([]Rule, len(rows))
	for i := range rows {
		rules[i] = *rows[i].rule()
		rules[i].Expired = !rules[i].Expires.IsZero() && !rules[i].Expires.After(now)
	}
	slices.SortFunc(rules, func(a, b Rule) int {
		return cmp.Or(
			strings.Compare(a.Limiter, b.Limiter), cmp.Compare(a.order(), b.order()), strings.Compare(a.Key, b.Key),
			cmp.Compare(len(b.Prefix), len(a.Prefix)), strings.Compare(a.Prefix, b.Prefix), cmp.Compare(b.temporary(), a.temporary()),
		)
	})
	return rules, nil
}

// Reaches says for how many buckets that are known now, of whatever strategy, the rule would hold: those of keys that have no rule
// of the same kind for themselves or for a longer prefix. A bucket is known until the cleanup finds it full. It reads the tables
// of the buckets, all of them if the rule is for more than one key. With the action Places it counts the keys of the semaphore.
func (t *Table) Reaches(ctx context.Context, rule Rule) (buckets int64, err error) {
	err = t.row(ctx, "select pglimit.limit_reaches($1::text, $2::text, $3::text, $4::text)",
		[]any{null(rule.Limiter), null(rule.Key), null(rule.Prefix), rule.Kind()}, &buckets)
	return buckets, err
}
