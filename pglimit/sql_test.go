package pglimit_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// signs is a database that answers a question for a sign of life, and nothing else, and not while it is down.
type signs struct {
	driver.Conn
	down  bool
	asked int
}

func (*signs) Driver() driver.Driver { return nil }

func (s *signs) Connect(context.Context) (driver.Conn, error) {
	if s.asked++; s.down {
		return nil, errors.New("connection refused")
	}
	return s, nil
}

func (s *signs) QueryContext(context.Context, string, []driver.NamedValue) (driver.Rows, error) {
	return &row{}, nil
}

func (*signs) Close() error { return nil }

// row is a row with a text.
type row struct {
	text string
	read bool
}

func (*row) Columns() []string { return []string{"why"} }
func (*row) Close() error      { return nil }

func (r *row) Next(to []driver.Value) error {
	if r.read {
		return io.EOF
	}
	to[0], r.read = r.text, true
	return nil
}

// noSQLTx is a transaction that panics when it is used.
type noSQLTx struct{ pglimit.SQLTx }

func TestNewSQLNeedsADatabase(t *testing.T) {
	t.Parallel()
	if _, err := pglimit.NewSQL(nil, &fake{}, config(nil)); err == nil || err.Error() != "pglimit: NewSQL needs a *sql.DB" {
		t.Error(err)
	}
	if _, err := pglimit.NewSQL(new(sql.DB), nil, config(nil)); err == nil {
		t.Error("no strategy: no error")
	}
	var request *pglimit.ConfigError
	if _, err := pglimit.NewSQL(new(sql.DB), &fake{}, config(func(c *pglimit.Config) { c.Name = "" })); !errors.As(err, &request) {
		t.Error(err)
	}
}

// The circuit breaker of a Limiter on a *sql.DB asks for a sign of life through it.
func TestSQLSignOfLife(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := &signs{down: true}
		db := sql.OpenDB(server)
		defer db.Close() //nolint:errcheck // there is nothing to close
		s := &fake{take: func(ctx context.Context, r []rate.Request) ([]pglimit.Decision, error) {
			if server.down {
				return nil, pglimit.ErrUnavailable
			}
			return grantAll(ctx, r)
		}}
		limiter, err := pglimit.NewSQL(db, s, config(func(c *pglimit.Config) { c.Breaker.Off = false }))
		if err != nil {
			t.Fatal(err)
		}
		for range 5 {
			_, _ = limiter.Allow(t.Context(), "a")
			synctest.Wait()
		}
		later(time.Second)
		if _, err := limiter.Allow(t.Context(), "a"); !errors.Is(err, pglimit.ErrUnavailable) || server.asked != 2 || limiter.Stats().Open != 1 {
			t.Errorf("%v, asked %d times, open %d", err, server.asked, limiter.Stats().Open)
		}
		server.down = false
		later(time.Second)
		if d, err := limiter.Allow(t.Context(), "a"); err != nil || !d.Allowed || server.asked != 3 || limiter.Stats().Open != 0 {
			t.Errorf("%+v, %v, asked %d times, open %d", d, err, server.asked, limiter.Stats().Open)
		}
		if err := limiter.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
