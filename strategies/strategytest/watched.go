package strategytest

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// watched is a session on a connection that looks, behind each statement and in its
// transaction, at what that transaction has done so far. The server's counters would show what
// others do, too.
type watched struct {
	rate.Session
	before func()   // each call, unless it is nil
	did    []string // what it wrote, or locked so that others wait
	sync   []string // synchronous_commit, where something was written
}

// look is a transaction's id, which whoever writes a row or locks one has; its locks that
// others would wait for; and how it would commit.
const look = `select
	coalesce(pg_current_xact_id_if_assigned()::text, ''),
	(select coalesce(string_agg(locktype || ' ' || mode, ', '), '') from pg_locks
		where pid = pg_backend_pid() and locktype <> 'virtualxid'
			and mode not in ('AccessShareLock', 'RowShareLock', 'RowExclusiveLock', 'SIReadLock')),
	current_setting('synchronous_commit')`

// Pipeline sends the statements with a look behind each. Those that fail are not looked at: what violates a constraint
// was written before it was found to.
func (w *watched) Pipeline(ctx context.Context, statements ...rate.Statement) (done int, err error) {
	w.call()
	var looking []rate.Statement
	saw := make([]struct{ id, locks, sync string }, len(statements))
	for i, statement := range statements {
		looking = append(looking, statement, rate.Statement{SQL: look, Into: []any{&saw[i].id, &saw[i].locks, &saw[i].sync}})
	}
	sent, err := w.Session.Pipeline(ctx, looking...)
	for _, saw := range saw[:sent/2] {
		if saw.id != "" {
			w.did = append(w.did, "wrote or locked a row (it has transaction id "+saw.id+")")
			w.sync = append(w.sync, saw.sync)
		}
		if saw.locks != "" {
			w.did = append(w.did, "holds "+saw.locks)
		}
	}
	if pg := (*pgconn.PgError)(nil); errors.As(err, &pg) && strings.HasPrefix(pg.Code, "23") {
		w.did = append(w.did, "wrote what a constraint forbids: "+pg.Message)
	}
	return (sent + 1) / 2, err
}

// Exec is a Pipeline, but for what ends a transaction, which may be several statements. What that did was seen before.
func (w *watched) Exec(ctx context.Context, sql string, args ...any) (rows int64, err error) {
	if len(args) > 0 {
		_, err = w.Pipeline(ctx, rate.Statement{SQL: sql, Args: args})
		return 0, err
	}
	w.call()
	return w.Session.Exec(ctx, sql)
}

func (w *watched) call() {
	if w.before != nil {
		w.before()
	}
}

func (w *watched) Row(ctx context.Context, sql string, args []any, into ...any) error {
	_, err := w.Pipeline(ctx, rate.Statement{SQL: sql, Args: args, Into: into})
	return err
}

func (w *watched) OneConnection(_ context.Context, f func(rate.Session) error) error { return f(w) }

// watch a connection of the pool, which the test gets to itself.
func (s *suite) watch() *watched {
	s.Helper()
	conn, err := s.pool.Acquire(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { // whatever was set on it, and begun, goes with it
		_ = conn.Conn().Close(context.WithoutCancel(s.Context()))
		conn.Release()
	})
	return &watched{Session: postgres.OnConn(conn.Conn())}
}

// exec sends a statement that is the test's own.
func (w *watched) exec(s *suite, sql string) {
	s.Helper()
	if _, err := w.Session.Exec(s.Context(), sql); err != nil {
		s.Fatal(err)
	}
}
