package strategies

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/ratelimit/internal/bucket"
	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

var (
	errSeveralGroups = fmt.Errorf("%w: where Citus distributes the tables, a call decides one group: ask for each by itself", rate.ErrNothingTaken)
	errNoGroups      = fmt.Errorf("%w: this database refuses groups where Citus distributes the tables (its setting pglimit.groups is off): ask for each key by itself: %w", rate.ErrNothingTaken, errors.ErrUnsupported)
)

// takeGroup decides a group where Citus distributes the table: one transaction takes from one bucket after another,
// in lock order. Citus commits it in two phases if the buckets are on several nodes. It is rolled back if one of them
// denies.
func takeGroup(ctx context.Context, session rate.Session, requests []rate.Request, how postgres.Manner) ([]rate.Decision, error) {
	if slices.ContainsFunc(requests, func(r rate.Request) bool { return r.Group == 0 || r.Group != requests[0].Group }) {
		return nil, errSeveralGroups
	}
	how.Relaxed = false // or a crash of the node that was asked, just after it has told the others to commit, would lose its own part
	var off bool
	rows, decisions := make([][]int64, len(requests)), make([]rate.Decision, len(requests))
	statements := []rate.Statement{{SQL: "select not coalesce(nullif(pg_catalog.current_setting('pglimit.groups', true), '')::boolean, true)", Into: []any{&off}}}
	for _, i := range postgres.Order(requests) {
		statements = append(statements, takeStatement(&requests[i], how, &rows[i]))
	}
	granted := false
	err := inTransaction(ctx, session, statements, func() bool {
		granted = !off && !slices.ContainsFunc(rows, func(row []int64) bool { return len(row) < 7 || row[1] == 0 })
		if granted {
			for i, row := range rows {
				decisions[i] = decisionOf(&requests[i], row)
			}
			granted = bucket.InTime(requests, decisions)
		}
		return granted
	})
	switch {
	case err == nil && off:
		err = errNoGroups
	case err == nil && slices.ContainsFunc(rows, func(row []int64) bool { return len(row) < 7 }): // of another statement
		err = pgx.ErrNoRows
	}
	if err != nil {
		return nil, err
	}
	if granted {
		return decisions, nil
	}
	for i, row := range rows {
		r := &requests[i]
		b := bucketOf(row[2:])
		at := b.Dated(row[0])
		b.FullNS -= row[1] * b.TokenNS // which was rolled back
		decisions[i] = b.Decision(r, at, 0)
		decisions[i].Allowed = decisions[i].Remaining >= r.Tokens
		decisions[i].HasRow = decisions[i].HasRow && decisions[i].ResetAfter > 0 // the row of a full bucket may have been made by this take
	}
	return decisions, nil
}

// inTransaction sends the statements in one transaction, or behind a savepoint of the caller's. It is kept if keep,
// which is called after they have succeeded, says so.
func inTransaction(ctx context.Context, session rate.Session, statements []rate.Statement, keep func() bool) error {
	return postgres.Transact(ctx, session, func(b *postgres.Transaction) error {
		if _, err := b.Begin(ctx, statements...); err != nil || !keep() {
			return err
		}
		return b.Keep(ctx)
	})
}

// groupPatience is the 5 ms of token_bucket_wait.
var groupPatience = "5ms"

// waitForGroup does for one group what token_bucket_wait does: each row is taken from and let go. patience is a
// lock_timeout; nil: as long as it takes. It returns the numbers, from 1, of the buckets whose rows were held for
// longer.
func waitForGroup(ctx context.Context, session rate.Session, requests []rate.Request, patience *string) (held []int64, err error) {
	for k, i := range postgres.Order(requests) {
		var numbers []int64
		take := takeStatement(&requests[i], postgres.Manner{Relaxed: true, Patience: patience}, &numbers)
		err := postgres.Again(ctx, session, 5, func() error {
			return inTransaction(ctx, session, []rate.Statement{take}, func() bool { return false })
		})
		if patience != nil && postgres.Is(err, postgres.LockNotAvailable) {
			held = append(held, int64(k+1))
		} else if err != nil {
			return nil, err
		}
	}
	return held, nil
}
