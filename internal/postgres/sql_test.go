package postgres_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// server stands in for a driver and Postgres. It writes down what is sent.
type server struct {
	mu     sync.Mutex
	sent   []string
	closed int
	row    []driver.Value               // of every query; nil: no row
	fail   func(statement string) error // nil: never
}

func (s *server) Connect(context.Context) (driver.Conn, error) { return &serverConn{s}, nil }
func (*server) Driver() driver.Driver                          { return nil }

func (s *server) receive(statement string, args []driver.NamedValue) error {
	for _, arg := range args {
		if text, is := arg.Value.(string); is {
			statement += " " + text
		} else if arg.Value == nil {
			statement += " null"
		}
	}
	s.mu.Lock()
	s.sent = append(s.sent, statement)
	s.mu.Unlock()
	if s.fail == nil {
		return nil
	}
	return s.fail(statement)
}

type serverConn struct{ *server }

func (*serverConn) Prepare(string) (driver.Stmt, error) { return nil, errors.ErrUnsupported }
func (*serverConn) Begin() (driver.Tx, error)           { return nil, errors.ErrUnsupported }

func (c *serverConn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed++
	return nil
}

func (c *serverConn) ExecContext(_ context.Context, statement string, args []driver.NamedValue) (driver.Result, error) {
	return driver.RowsAffected(1), c.receive(statement, args)
}

func (c *serverConn) QueryContext(_ context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	return &serverRows{row: c.row}, c.receive(query, args)
}

type serverRows struct {
	row  []driver.Value
	read bool
}

func (r *serverRows) Columns() []string { return make([]string, len(r.row)) }
func (*serverRows) Close() error        { return nil }

func (r *serverRows) Next(to []driver.Value) error {
	if r.row == nil || r.read {
		return io.EOF
	}
	copy(to, r.row)
	r.read = true
	return nil
}

func (s *server) open(t *testing.T) rate.Session {
	t.Helper()
	db := sql.OpenDB(s)
	t.Cleanup(func() { _ = db.Close() })
	return postgres.OnSQLDB(db)
}

func (s *server) wantSent(t *testing.T, statements ...string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Equal(s.sent, statements) {
		t.Errorf("sent %q, want %q", s.sent, statements)
	}
}

// A take may have been committed before its connection broke: it is not sent again.
func TestSQLSendsAStatementOnce(t *testing.T) {
	t.Parallel()
	s := &server{fail: func(string) error { return driver.ErrBadConn }}
	if err := s.open(t).Row(t.Context(), "take", nil); !errors.Is(err, driver.ErrBadConn) {
		t.Error(err)
	}
	s.wantSent(t, "take")
}

// A driver that does not return when the context ends costs the caller a moment, and its
// connection is not used again.
func TestSQLDriverThatDoesNotReturn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		s := &server{row: []driver.Value{int64(5)}, fail: func(statement string) error {
			if statement == "hang" {
				<-answer
			}
			return nil
		}}
		on := s.open(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began, n := time.Now(), int64(0)
		if err := on.Row(ctx, "hang", nil, &n); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if took := time.Since(began); took > 1200*time.Millisecond {
			t.Errorf("the caller waited %v", took)
		}
		if err := on.Row(t.Context(), "next", nil, &n); err != nil || s.closed != 0 { // on another connection
			t.Error(err, s.closed)
		}
		close(answer)
		synctest.Wait()
		if s.closed != 1 {
			t.Errorf("%d connections were closed", s.closed)
		}
	})
}

// Nor is a transaction that such a driver is in: nothing more is sent, not even a rollback, and what the
// driver says later is not heard.
func TestSQLDriverThatDoesNotReturnInATransaction(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	returns := filepath.Join(t.TempDir(), "returns") // what tells the driver to return: a channel would hide a race
	s := &server{fail: func(statement string) error {
		if statement != "hang" {
			return nil
		}
		cancel()
		for end := time.Now().Add(time.Minute); time.Now().Before(end); {
			if _, err := os.Stat(returns); err == nil {
				break
			}
			time.Sleep(time.Millisecond) //nolint:forbidigo // between two looks
		}
		return nil
	}}
	on := s.open(t)
	done, err := on.Pipeline(ctx, rate.Statement{SQL: "first"}, rate.Statement{SQL: "hang"}, rate.Statement{SQL: "last"})
	if done != 1 || !errors.Is(err, context.Canceled) {
		t.Error(done, err) // with done 2, the caller waited
	}
	if err := os.Mkdir(returns, 0o700); err != nil {
		t.Error(err)
	}
	time.Sleep(100 * time.Millisecond) //nolint:forbidigo // not a synchronisation: the race detector must see that there is none
	s.wantSent(t, "begin", "first", "hang")
}

// Nothing is sent once the context has ended.
func TestSQLCancelledBefore(t *testing.T) {
	t.Parallel()
	s := &server{}
	ctx, cancel := context.WithCancel(t.Context())
	err := s.open(t).OneConnection(ctx, func(conn rate.Session) error {
		cancel()
		_, err := conn.Exec(ctx, "take")
		return err
	})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	s.wantSent(t)
}

func TestSQLPipelineIsOneTransaction(t *testing.T) {
	t.Parallel()
	three := []rate.Statement{{SQL: "a"}, {SQL: "b", Into: []any{}}, {SQL: "c"}}
	refused := &pgconn.PgError{Code: "55P03"}
	for _, test := range []struct {
		name       string
		statements []rate.Statement
		fail       string
		done       int
		sent       string
	}{
		{"three", three, "", 3, "begin a b c commit"},
		{"the second fails", three, "b", 1, "begin a b rollback"},
		{"the commit fails", three, "commit", 3, "begin a b c commit rollback"},
		{"one", three[:1], "", 1, "a"},
		{"its own", []rate.Statement{{SQL: "Begin isolation level read committed"}, {SQL: "a"}, {SQL: "commit"}}, "", 3, "Begin isolation level read committed a commit"},
	} {
		s := &server{fail: func(statement string) error {
			if statement == test.fail {
				return refused
			}
			return nil
		}}
		done, err := s.open(t).Pipeline(t.Context(), test.statements...)
		if done != test.done || errors.Is(err, refused) != (test.fail != "") {
			t.Errorf("%s: %d done, %v", test.name, done, err)
		}
		if sent := strings.Join(s.sent, " "); sent != test.sent || s.closed != 0 {
			t.Errorf("%s: sent %q, %d connections lost", test.name, sent, s.closed)
		}
	}
}

// Statements begin and end a transaction; a connection that is left in one is not used again.
func TestSQLConnectionKnowsItsTransaction(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		on := s.open(t)
		for _, test := range []struct {
			statements []string
			in         bool
		}{
			{[]string{"begin", "commit"}, false},
			{[]string{"BEGIN", "savepoint s", "rollback to savepoint s; release savepoint s"}, true},
			{[]string{"start transaction", "rollback"}, false},
			{[]string{"begin", "end"}, false},
			{[]string{"select 1"}, false},
		} {
			closed := s.closed
			err := on.OneConnection(t.Context(), func(conn rate.Session) error {
				for _, statement := range test.statements {
					if _, err := conn.Exec(t.Context(), statement); err != nil {
						return err
					}
				}
				if conn.Autocommits() == test.in {
					t.Errorf("%q: in a transaction %v", test.statements, !test.in)
				}
				return nil
			})
			synctest.Wait()
			if lost := s.closed > closed; err != nil || lost != test.in {
				t.Errorf("%q: lost %v, %v", test.statements, lost, err)
			}
		}
	})
}

// Arrays go and come as text, nil is null, and a nil destination is skipped.
func TestSQLValues(t *testing.T) {
	t.Parallel()
	s := &server{}
	on := s.open(t)
	if _, err := on.Exec(t.Context(), "-", []string{"a", `b"\,{}`, "", "NULL"}, []int64{1, -2}, []int64{}, []int64(nil), []string(nil), true, "text"); err != nil {
		t.Error(err)
	}
	s.wantSent(t, `- {a,"b\"\\,{}","","NULL"} {1,-2} {} null null text`)

	var numbers, rows, none, empty []int64
	var words []string
	var some, missing *int64
	var yes bool
	var truths []bool
	s.row = []driver.Value{[]byte("{1,-2}"), "{{1,2},{3,4}}", nil, "{}", `{a,"b\"\\,{}","","NULL"}`, int64(7), nil, true, "{t,f}", "skipped"}
	if err := on.Row(t.Context(), "-", nil, &numbers, &rows, &none, &empty, &words, &some, &missing, &yes, &truths, nil); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(numbers, []int64{1, -2}) || !slices.Equal(rows, []int64{1, 2, 3, 4}) || none != nil || empty == nil || len(empty) > 0 ||
		!slices.Equal(words, []string{"a", `b"\,{}`, "", "NULL"}) || some == nil || *some != 7 || missing != nil || !yes || !slices.Equal(truths, []bool{true, false}) {
		t.Error(numbers, rows, none, empty, words, some, missing, yes, truths)
	}
	for _, bad := range []string{"", "1,2", "{1,NULL}", "{{1,2},{3}}", `{"1}`, `{"1\`, `{"1\}`, "{x}", "{1.5}"} {
		s.row = []driver.Value{bad}
		if err := on.Row(t.Context(), "-", nil, &numbers); err == nil || !strings.Contains(err.Error(), "array "+bad) {
			t.Errorf("%q: %v, %v", bad, numbers, err)
		}
	}
}

// What the strategies tell errors apart by is as with pgx.
func TestSQLErrorsAreThoseOfPgx(t *testing.T) {
	t.Parallel()
	s := &server{}
	on := s.open(t)
	var n int64
	if err := on.Row(t.Context(), "-", nil, &n); !errors.Is(err, pgx.ErrNoRows) {
		t.Errorf("no row: %v", err)
	}
	s.row = []driver.Value{int64(1), int64(2)}
	if err := on.Row(t.Context(), "-", nil, &n); err == nil || !strings.HasPrefix(err.Error(), "number of field descriptions") {
		t.Errorf("another number of columns: %v", err)
	}
	s.fail = func(string) error {
		return theirError{'C': "42501", 'S': "ERROR", 'M': "permission denied", 'H': "ask"}
	}
	_, err := on.Exec(t.Context(), "-")
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != "42501" || pg.Message != "permission denied" || pg.SeverityUnlocalized != "ERROR" || pg.Hint != "ask" || !errors.As(err, new(theirError)) || err.Error() != "theirs" {
		t.Errorf("%v: %+v", err, pg)
	}
	s.fail = func(string) error { return sql.ErrTxDone }
	if _, err := on.Exec(t.Context(), "-"); !errors.Is(err, pgx.ErrTxClosed) || !errors.Is(err, sql.ErrTxDone) {
		t.Error(err)
	}
	// lib/pq's word for a statement that the caller has cancelled.
	ctx, cancel := context.WithCancel(t.Context())
	s.fail = func(string) error {
		cancel()
		return theirError{'C': "57014"}
	}
	if _, err := on.Exec(ctx, "-"); !errors.Is(err, context.Canceled) || errors.As(err, &pg) {
		t.Error(err)
	}
}

// theirError is made like a *pq.Error.
type theirError map[byte]string

func (theirError) Error() string       { return "theirs" }
func (e theirError) SQLState() string  { return e['C'] }
func (e theirError) Get(k byte) string { return e[k] }
