// Package rows has everything that strategies do with their rows except deciding: look, step,
// give back, reset and sweep.
package rows

import (
	"context"
	"embed"
	"fmt"
	"strings"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

//go:embed sql
var files embed.FS

// Table is the table of one strategy, with the statements for it.
type Table struct {
	Name string

	// Look reads the row of one bucket.
	Look string

	step, giveBack, reset, sweep string
	sweepShards                  string // sweep, up to its last select
}

// NewTable returns the table of that name.
func NewTable(name string) *Table {
	fullNS, leasedNS, columns := "full_ns", "0::bigint", "b.full_ns, b.token_ns"
	switch name {
	case "token_bucket": // an unsettled lease counts as spent when it expires
		fullNS = "case when leased_ns > 0::bigint then greatest(full_ns, until_ns) else full_ns end"
		leasedNS = "coalesce(leased_ns, 0::bigint)" // subtracted, because a sum could overflow
	case "token_bucket_answers":
		fullNS = "until_ns"
	case "token_bucket_blocks", "permits":
		fullNS = "forget_ns"
	case "warm_up":
		columns = "b.free_ns, b.due_ns"
	}
	isFull := fullNS + " <= (select pglimit.clock_ns()) - 60000000000::bigint - " + leasedNS
	if name == "token_bucket" { // behind a pause the tokens come back, and only the asker knows his window: a long one
		isFull += " and coalesce(paused_ns, 0::bigint) <= (select pglimit.clock_ns()) - case when paused_ns > at_ns then 8640000000000000::bigint else 60000000000::bigint end"
	}
	if name == "exclusion_range" {
		isFull = "pg_catalog.upper(during) <= (select pglimit.time_of(pglimit.clock_ns() - 60000000000::bigint))"
	}
	t := &Table{
		Name:     name,
		step:     postgres.StatementOf(files, "step.sql", name),
		giveBack: postgres.StatementOf(files, "give_back.sql", name),
		Look:     strings.ReplaceAll(postgres.StatementOf(files, "look.sql", name), "$columns", columns),
		reset:    postgres.StatementOf(files, "reset.sql", name),
		sweep:    walk(name, isFull),
	}
	head, _, _ := strings.Cut(t.sweep, "\nselect\n")
	t.sweepShards = strings.ReplaceAll(head, "pglimit."+name, "$table") + "\nselect"
	return t
}

// walk is the statement that removes such rows from a range of pages.
func walk(name, goes string) string {
	return strings.ReplaceAll(postgres.StatementOf(files, "sweep.sql", name), "$goes", goes)
}

// Row is what a strategy keeps of a key.
type Row interface {
	Fields() []any          // pointers to the columns, in the order in which statements return them
	Ahead(nowNS int64) bool // the clock has stepped back since it was written
	Decision(r *rate.Request, nowNS, granted int64) rate.Decision
}

// Peek reads the row of a key with a statement that returns the clock, the row, and whether row security hides rows.
func Peek(ctx context.Context, session rate.Session, r *rate.Request, sql string, row Row) (rate.Decision, error) {
	var nowNS int64
	var hidden bool
	if err := session.Row(ctx, sql, []any{r.Key, r.Limiter}, append(append([]any{&nowNS}, row.Fields()...), &hidden)...); err != nil {
		return rate.Decision{}, err
	}
	if hidden {
		return rate.Decision{}, postgres.ErrHidden
	}
	return row.Decision(r, nowNS, 0), nil
}

// Take decides a request with a statement that reads the row of the key, and writes it if that grants tokens. It
// returns how many, the clock, and the row. If the row is ahead of the clock, or the statement says -1, correction is
// sent, and it is asked again.
func Take(ctx context.Context, session rate.Session, r *rate.Request, sql string, args []any, row Row, correction func() []rate.Statement) (rate.Decision, error) {
	for tries := 1; ; tries++ {
		var granted *int64
		var nowNS int64
		err := session.Row(ctx, sql, args, append([]any{&granted, &nowNS}, append(row.Fields(), nil)...)...)
		switch {
		case err != nil:
			return rate.Decision{}, err
		case granted == nil:
			// The row changed between the read and the lock: another request took tokens, or
			// a token came back. A new statement sees that. The loop ends, because tokens
			// that come back faster than a statement takes do not count as a change. (In a transaction that
			// sees no changes of others, it would not.)
			if tries == 100 && !session.Autocommits() {
				return rate.Decision{}, postgres.ErrKeepsChanging
			}
		case *granted < 0, *granted == 0 && row.Ahead(nowNS):
			if _, err := session.Pipeline(ctx, correction()...); err != nil {
				return rate.Decision{}, err
			}
		default:
			return row.Decision(r, nowNS, *granted), nil
		}
	}
}

// Step corrects the row of a bucket after the clock stepped back.
func (t *Table) Step(r *rate.Request) rate.Statement {
	return rate.Statement{SQL: t.step, Args: []any{r.Key, r.Limiter}}
}

// Reset fills a bucket.
func (t *Table) Reset(ctx context.Context, session rate.Session, limiter, key string) error {
	return Reset(ctx, session, limiter, key, t.reset)
}

// Reset sends a statement that fills a bucket: $1 is the key, $2 the limiter.
func Reset(ctx context.Context, session rate.Session, limiter, key, sql string) error {
	// Only the names need validation: the limit is a placeholder.
	if err := (rate.Request{Limiter: limiter, Key: key, Limit: rate.PerSecond(1)}).Validate(); err != nil {
		return err
	}
	return postgres.Explain(postgres.Again(ctx, session, 5, func() error {
		var hidden bool
		err := session.Row(ctx, sql, []any{key, limiter}, &hidden, nil)
		if err == nil && hidden {
			err = postgres.ErrHidden
		}
		return err
	}))
}

// rowsPerPage is about how many rows lie in a page that is half full. The sweep walks by
// pages, so it divides the number of rows of a batch by this.
const rowsPerPage = 40

// lastPage is the highest page number that fits a ctid. No table is as long.
const lastPage = 1<<32 - 1

// Sweep sweeps some pages of the table, about limit rows, and the same pages of others, in one
// round trip. The walk is as long as the longest of these tables.
func (t *Table) Sweep(ctx context.Context, session rate.Session, from rate.Cursor, limit int, others ...*Table) (rate.Swept, error) {
	walk := from & ofShards
	from &^= ofShards
	if from == 0 {
		if distributed, err := t.isDistributed(ctx, session); err != nil {
			return rate.Swept{}, err
		} else if distributed {
			walk = ofShards
		}
	}
	if from < 0 || limit < 1 {
		return rate.Swept{}, fmt.Errorf("pglimit: Sweep from %d with a limit of %d: from must be a Cursor of another Sweep or 0, limit at least 1", from, limit)
	}
	pages := max(1, limit/rowsPerPage)
	swept := rate.Swept{Next: min(min(from, lastPage)+rate.Cursor(min(pages, lastPage)), lastPage), Done: true}
	each := make([]struct {
		removed      int64
		done, hidden bool
		failed       *string
	}, 1+len(others))
	var statements []rate.Statement
	for i, table := range append([]*Table{t}, others...) {
		of := &each[i]
		if walk != 0 {
			statements = append(statements, table.onShards(table.sweepShards, sweptOfShard, []any{int64(from), int64(swept.Next)}, &of.removed, &of.done, &of.failed))
			continue
		}
		statements = append(statements, rate.Statement{
			SQL: table.sweep, Args: []any{int64(from), int64(swept.Next), session.Autocommits()}, Into: []any{&of.removed, &of.done, &of.hidden, nil},
		})
	}
	statements = postgres.Manner{Own: session.Autocommits() && walk == 0}.Uncompiled(statements...)
	err := postgres.Serialized(ctx, session, func() error {
		_, err := session.Pipeline(ctx, statements...)
		return err
	})
	if err != nil {
		return rate.Swept{}, postgres.ExplainStep(err)
	}
	swept.Next |= walk
	for _, of := range each {
		switch {
		case of.hidden:
			return rate.Swept{}, postgres.ErrHidden
		case of.failed != nil:
			return rate.Swept{}, fmt.Errorf("pglimit: a shard could not be swept: %s", *of.failed)
		}
		swept.Removed += of.removed
		swept.Done = swept.Done && of.done
	}
	return swept, nil
}
