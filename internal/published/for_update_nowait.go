package published

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// ForUpdateNowait is the first statement: begin, lock the row or give up, update,
// commit. If another request holds the row, the denial is contended.
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
func (s ForUpdateNowait) Take(ctx context.Context, session rate.Session, requests []rate.Request) ([]rate.Decision, error) {
	return s.takeEach(requests, func(r rate.Request, intervalUS int64) (bool, rate.Decision, error) {
		granted, d, err := s.take(ctx, session, r.Key, intervalUS)
		if errors.Is(err, pgx.ErrNoRows) {
			if _, err = session.Exec(ctx, s.first, r.Key); err == nil {
				granted, d, err = s.take(ctx, session, r.Key, intervalUS)
			}
		}
		return granted, d, err
	})
}

func (s ForUpdateNowait) take(ctx context.Context, session rate.Session, key string, intervalUS int64) (granted bool, d rate.Decision, err error) {
	err = session.OneConnection(ctx, func(conn rate.Session) error {
		if _, err := conn.Exec(ctx, "begin"); err != nil {
			return err
		}
		var at time.Time
		err := conn.Row(ctx, s.lock, []any{key, intervalUS}, &at, &granted)
		if err == nil && granted {
			// A denial gets no time: at is when the transaction began, but the row was read
			// later, and may count grants that were made in between.
			d.At = at
			_, err = conn.Exec(ctx, s.update, key)
		}
		if err == nil && granted {
			_, err = conn.Exec(ctx, "commit")
			return err
		}
		granted = false
		_, failed := conn.Exec(ctx, "rollback")
		if postgres.Is(err, postgres.LockNotAvailable) {
			d, err = rate.Decision{Contended: true}, nil
		}
		return cmp.Or(err, failed)
	})
	return granted && err == nil, d, err
}
