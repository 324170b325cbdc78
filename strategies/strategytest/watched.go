package strategytest

import (
	"cmp"
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// watched is a session on a connection that looks, behind each statement and in its
// transaction, at what that transaction has done so far. The server's counters would show what
// others do, too.
type watched struct {
	conn *pgx.Conn
	did  []string // what it wrote, or locked so that others wait
	sync []string // synchronous_commit, where something was written
}

// look is a transaction's id, which whoever writes a row or locks one has; its locks that
// others would wait for; and how it would commit.
const look = `select
	coalesce(pg_current_xact_id_if_assigned()::text, ''),
	(select coalesce(string_agg(locktype || ' ' || mode, ', '), '') from pg_locks
		where pid = pg_backend_pid() and locktype <> 'virtualxid'
			and mode not in ('AccessShareLock', 'RowShareLock', 'RowExclusiveLock', 'SIReadLock')),
	current_setting('synchronous_commit')`

func (w *watched) saw(id, locks, sync string) {
	if id != "" {
		w.did = append(w.did, "wrote or locked a row (it has transaction id "+id+")")
		w.sync = append(w.sync, sync)
	}
	if locks != "" {
		w.did = append(w.did, "holds "+locks)
	}
}

// failed statements are not looked at. What violates a constraint was written before it was
// found to.
func (w *watched) failed(err error) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && strings.HasPrefix(pg.Code, "23") {
		w.did = append(w.did, "wrote what a constraint forbids: "+pg.Message)
	}
	return err
}

func (w *watched) lookAt(results pgx.BatchResults) error {
	var id, locks, sync string
	err := results.QueryRow().Scan(&id, &locks, &sync)
	w.saw(id, locks, sync)
	return err
}

func (w *watched) Autocommits() bool { return w.conn.PgConn().TxStatus() == 'I' }

func (w *watched) Exec(ctx context.Context, sql string, args ...any) (int64, error) {
	if len(args) == 0 { // as pgx sends it: it may be several statements
		results, err := w.conn.PgConn().Exec(ctx, sql+"\n;"+look).ReadAll()
		if err != nil {
			return 0, w.failed(err)
		}
		row := results[len(results)-1].Rows[0]
		w.saw(string(row[0]), string(row[1]), string(row[2]))
		return results[max(0, len(results)-2)].CommandTag.RowsAffected(), nil
	}
	var rows int64
	err := w.send(ctx, []rate.Statement{{SQL: sql, Args: args}}, func(_ int, results pgx.BatchResults) error {
		tag, err := results.Exec()
		rows = tag.RowsAffected()
		return err
	})
	return rows, err
}

func (w *watched) Row(ctx context.Context, sql string, args []any, into ...any) error {
	return w.send(ctx, []rate.Statement{{SQL: sql, Args: args}}, func(_ int, results pgx.BatchResults) error {
		return results.QueryRow().Scan(into...)
	})
}

func (w *watched) Pipeline(ctx context.Context, statements ...rate.Statement) (done int, err error) {
	err = w.send(ctx, statements, func(i int, results pgx.BatchResults) error {
		var err error
		if into := statements[i].Into; into == nil {
			_, err = results.Exec()
		} else if err = results.QueryRow().Scan(into...); errors.Is(err, pgx.ErrNoRows) {
			err = nil
		}
		if err == nil {
			done++
		}
		return err
	})
	return done, err
}

// send the statements in one round trip, with a look behind each.
func (w *watched) send(ctx context.Context, statements []rate.Statement, read func(int, pgx.BatchResults) error) (err error) {
	var batch pgx.Batch
	for _, statement := range statements {
		batch.Queue(statement.SQL, statement.Args...)
		batch.Queue(look)
	}
	results := w.conn.SendBatch(ctx, &batch)
	defer func() { err = w.failed(cmp.Or(err, results.Close())) }()
	for i := range statements {
		if err := read(i, results); err != nil {
			return err
		}
		if err := w.lookAt(results); err != nil {
			return err
		}
	}
	return nil
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
	return &watched{conn: conn.Conn()}
}

// exec sends a statement that is the test's own.
func (w *watched) exec(s *suite, sql string) {
	s.Helper()
	if _, err := w.conn.Exec(s.Context(), sql); err != nil {
		s.Fatal(err)
	}
}
