// Package limits changes the limits in the table pglimit.limits, which services read with pglimit.LimitsFrom. It is for
// operators and their tools: a role needs the rights that "pglimit migrate grants ROLE --for limits" prints. The
// command "pglimit limits" is made of it, and every function of it is one call of a function in SQL, which psql can
// call too.
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

// DB is an application's pool: a *pgxpool.Pool, or a *sql.DB with pgx's driver, github.com/jackc/pgx/v5/stdlib, or with
// github.com/lib/pq.
type DB interface{ postgres.DB }

// Table is the table pglimit.limits. It is safe for concurrent use. A change waits for those of other transactions. It
// applies in services within two seconds of its commit, and in semaphores from the next acquire on.
//
// Errors are pglimit.ErrNotMigrated, pglimit.ErrPermission, pglimit.ErrReadOnly and [ErrNoRule], which errors.Is tells
// apart, or Postgres's own. After an error nothing was changed, unless the connection broke before the answer: then
// that is not known.
type Table struct{ session rate.Session }

// New returns the Table of a database. It does not call Postgres yet. db must not be nil.
func New[D DB](db D) *Table {
	return On(postgres.On(db))
}

// On returns the Table in a session of the caller's, which pglimit.InTx and similar functions make. Changes apply when
// the transaction commits; until then, every other change waits.
func On(session rate.Session) *Table { return &Table{session} }

// Set sets the rule for its keys, and returns the rule that it replaced, or nil. It replaces only a rule of the same
// [Rule.Kind]. A rule that Expires replaces only one that does.
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

// Delete removes the rule of the same [Rule.Kind] for the same keys, and returns it, or nil if there is none. If there
// are a temporary and a permanent rule, it removes the temporary one until that expires; with Off, it removes both. It
// reads only Limiter, Key, Prefix, the kind of the Action, Note (why; required) and By.
func (t *Table) Delete(ctx context.Context, rule Rule) (removed *Rule, err error) {
	return t.change(ctx, "select pglimit.delete_limit($1::text, key => $2::text, prefix => $3::text, kind => $4::text, note => $5::text, by => $6::text)::text",
		null(rule.Limiter), null(rule.Key), null(rule.Prefix), rule.Kind(), rule.Note, null(rule.By))
}

// Enable enables a disabled rule, and returns it as it was before, or nil if there is none. It reads what
// [Table.Delete] reads, and picks the same one of two rules. Note becomes the rule's note. An enabled rule is left
// alone.
func (t *Table) Enable(ctx context.Context, rule Rule) (before *Rule, err error) {
	return t.enable(ctx, rule, true)
}

// Disable disables a rule, even if the rule is invalid by now. Otherwise it works like [Table.Enable].
func (t *Table) Disable(ctx context.Context, rule Rule) (before *Rule, err error) {
	return t.enable(ctx, rule, false)
}

func (t *Table) enable(ctx context.Context, rule Rule, on bool) (*Rule, error) {
	return t.change(ctx, "select pglimit.enable_limit($1::text, $2::boolean, key => $3::text, prefix => $4::text, kind => $5::text, note => $6::text, by => $7::text)::text",
		null(rule.Limiter), on, null(rule.Key), null(rule.Prefix), rule.Kind(), rule.Note, null(rule.By))
}

// row sends a statement. If transactions are above READ COMMITTED by default, Postgres rolls it back when another one
// was faster. Then row sends it again, until ctx ends.
func (t *Table) row(ctx context.Context, sql string, args []any, into ...any) error {
	return explain(postgres.Serialized(ctx, t.session, func() error { return t.session.Row(ctx, sql, args, into...) }))
}

// change calls a function that returns the previous row.
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

// List returns all rules, including disabled and expired ones, as of one moment. They are sorted by limiter, and then
// in the order in which they are looked up for a key. [Table.Import] accepts them.
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

// Reaches counts the known buckets, of whatever strategy, to which the rule would apply: those of keys without a rule
// of the same kind for the key itself or for a longer prefix. A bucket is known until the cleanup finds it full. If the
// rule is for more than one key, it reads the whole tables. With ActionPlaces it counts the keys of the semaphore.
func (t *Table) Reaches(ctx context.Context, rule Rule) (buckets int64, err error) {
	err = t.row(ctx, "select pglimit.limit_reaches($1::text, $2::text, $3::text, $4::text)",
		[]any{null(rule.Limiter), null(rule.Key), null(rule.Prefix), rule.Kind()}, &buckets)
	return buckets, err
}
