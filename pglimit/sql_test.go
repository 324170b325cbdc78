package pglimit_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
)

// noSQL panics when it is used, but for a sign of life.
type noSQL struct {
	pglimit.SQLDB
	ping func() error
}

func (db noSQL) PingContext(context.Context) error { return db.ping() }

// noSQLTx is a transaction that panics when it is used.
type noSQLTx struct{ pglimit.SQLTx }

func TestNewSQLNeedsADatabase(t *testing.T) {
	t.Parallel()
	for _, db := range []pglimit.SQLDB{nil, (*sql.DB)(nil)} {
		if _, err := pglimit.NewSQL(db, &fake{}, config(nil)); err == nil || err.Error() != "pglimit: NewSQL needs a database, such as a *sql.DB" {
			t.Error(err)
		}
	}
	if _, err := pglimit.NewSQL(noSQL{}, nil, config(nil)); err == nil {
		t.Error("no strategy: no error")
	}
	var request *pglimit.ConfigError
	if _, err := pglimit.NewSQL(noSQL{}, &fake{}, config(func(c *pglimit.Config) { c.Name = "" })); !errors.As(err, &request) {
		t.Error(err)
	}
}

func TestNoSQLTransactionOrConnectionIsAnError(t *testing.T) {
	t.Parallel()
	limiter := newLimiter(t, &fake{}, nil)
	for name, in := range map[string]*pglimit.Limiter{
		"nil": limiter.On(pglimit.InSQLTx(nil)), "a nil *sql.Tx": limiter.On(pglimit.InSQLTx((*sql.Tx)(nil))), "a nil *sql.Conn": limiter.On(pglimit.OnSQLConn(nil)),
	} {
		if _, err := in.Allow(t.Context(), "k"); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// The circuit breaker of a Limiter on a *sql.DB pings it, and closes when that is answered.
func TestSQLSignOfLifeIsAPing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		down, pings := true, 0
		s := &fake{take: func(ctx context.Context, r []pglimit.Request) ([]pglimit.Decision, error) {
			if down {
				return nil, pglimit.ErrUnavailable
			}
			return grantAll(ctx, r)
		}}
		limiter, err := pglimit.NewSQL(noSQL{ping: func() error {
			if pings++; down {
				return errors.New("connection refused")
			}
			return nil
		}}, s, config(func(c *pglimit.Config) { c.Breaker.Off = false }))
		if err != nil {
			t.Fatal(err)
		}
		for range 5 {
			_, _ = limiter.Allow(t.Context(), "a")
		}
		later(time.Second)
		if _, err := limiter.Allow(t.Context(), "a"); !errors.Is(err, pglimit.ErrUnavailable) || pings != 1 || limiter.Stats().Open != 1 {
			t.Errorf("%v, %d pings, open %d", err, pings, limiter.Stats().Open)
		}
		down = false
		later(time.Second)
		if d, err := limiter.Allow(t.Context(), "a"); err != nil || !d.Allowed || pings != 2 || limiter.Stats().Open != 0 {
			t.Errorf("%+v, %v, %d pings, open %d", d, err, pings, limiter.Stats().Open)
		}
		if err := limiter.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
