package published

import (
	"context"
	_ "embed"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// ForUpdateNowait is the first statement: begin, lock the row or give up, update,
// commit. A row that somebody else holds is a contended denial.
type ForUpdateNowait struct {
	table
	first, lock, update string
}

var _ rate.Strategy = ForUpdateNowait{}

var (
	//go:embed for_update_nowait_first.sql
	nowaitFirstFile string
	//go:embed for_update_nowait_lock.sql
	nowaitLockFile string
	//go:embed for_update_nowait_update.sql
	nowaitUpdateFile string
)

// NewForUpdateNowait works on the tables that [Create] made in the schema.
func NewForUpdateNowait(schema string) ForUpdateNowait {
	return ForUpdateNowait{
		table:  table{schema, "for_update_nowait"},
		first:  statement(nowaitFirstFile, schema),
		lock:   statement(nowaitLockFile, schema),
		update: statement(nowaitUpdateFile, schema),
	}
}

// Take decides in four round trips: begin, lock, update, commit.
func (s ForUpdateNowait) Take(ctx context.Context, db rate.DB, requests []rate.Request) ([]rate.Decision, error) {
	return s.takeEach(requests, func(r rate.Request, intervalUS int64) (bool, rate.Decision, error) {
		granted, d, err := s.take(ctx, db, r.Key, intervalUS)
		if errors.Is(err, pgx.ErrNoRows) {
			if _, err = db.Exec(ctx, s.first, r.Key); err == nil {
				granted, d, err = s.take(ctx, db, r.Key, intervalUS)
			}
		}
		return granted, d, err
	})
}

func (s ForUpdateNowait) take(ctx context.Context, db rate.DB, key string, intervalUS int64) (granted bool, d rate.Decision, err error) {
	tx, err := db.Begin(ctx)
	if err != nil {
		return false, d, err
	}
	defer tx.Rollback(ctx) //nolint:errcheck // after a commit it does nothing, and otherwise err says what went wrong

	var at time.Time
	switch err = tx.QueryRow(ctx, s.lock, key, intervalUS).Scan(&at, &granted); {
	case isCode(err, lockNotAvailable):
		return false, rate.Decision{Contended: true}, nil
	case err != nil:
		return false, d, err
	}
	if !granted {
		// at is when the transaction began, the row was looked at later: what was
		// granted in between is not in the time, so it is not the denial's.
		return false, d, nil
	}
	d.At = at
	if _, err = tx.Exec(ctx, s.update, key); err != nil {
		return false, d, err
	}
	return true, d, tx.Commit(ctx)
}
