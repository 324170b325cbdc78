package integration

import (
	"cmp"
	"context"
	"database/sql"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/lib/pq"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
	"github.com/pglimit/ratelimit/strategies/strategytest"
)

// sqlDrivers open the database of a pool by database/sql.
var sqlDrivers = []struct {
	name string
	open func(t *testing.T, url string) *sql.DB
}{
	{"pgx", func(t *testing.T, url string) *sql.DB {
		config, err := pgxpool.ParseConfig(url)
		must(t, err)
		return stdlib.OpenDB(*config.ConnConfig)
	}},
	{"pq", func(t *testing.T, url string) *sql.DB { return openPQ(t, with(url, "binary_parameters", "yes")) }},
	{"pq that prepares", openPQ},
}

func openPQ(t *testing.T, url string) *sql.DB {
	t.Helper()
	connector, err := pq.NewConnector(with(url, "sslmode", "disable"))
	must(t, err)
	return sql.OpenDB(connector)
}

// with a setting, which text that is no URL has at its end.
func with(address, name, value string) string {
	u, err := url.Parse(address)
	if err != nil || u.Scheme == "" {
		return address + " " + name + "=" + value
	}
	query := u.Query()
	query.Set(name, value)
	u.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20") // which pgx does not read as a space
	return u.String()
}

// eachSQLDriver runs the test for every driver, each on a database of its own.
func eachSQLDriver(t *testing.T, test func(t *testing.T, pool *pgxpool.Pool, open func(maxConns int) *sql.DB)) {
	t.Helper()
	for _, driver := range sqlDrivers {
		t.Run(driver.name, func(t *testing.T) {
			t.Parallel()
			pool := newMigrated(t)
			test(t, pool, func(maxConns int) *sql.DB { return openSQL(t, driver.open, databaseURL(pool), maxConns) })
		})
	}
}

func openSQL(t *testing.T, open func(*testing.T, string) *sql.DB, url string, maxConns int) *sql.DB {
	t.Helper()
	db := open(t, url)
	db.SetMaxOpenConns(maxConns)
	db.SetMaxIdleConns(maxConns)
	t.Cleanup(func() { must(t, db.Close()) })
	return db
}

// sqlDriver runs a conformance suite on a database/sql.
type sqlDriver struct{ db *sql.DB }

func (d sqlDriver) Session() rate.Session { return postgres.OnSQLDB(d.db) }

func (d sqlDriver) Begin(ctx context.Context) (strategytest.Tx, error) {
	tx, err := d.db.BeginTx(context.WithoutCancel(ctx), nil)
	if err != nil {
		return strategytest.Tx{}, err
	}
	return strategytest.Tx{
		Session:  postgres.InSQLTx(tx),
		Commit:   func(context.Context) error { return tx.Commit() },
		Rollback: func(context.Context) error { return tx.Rollback() },
	}, nil
}

func (d sqlDriver) Conn(ctx context.Context) (rate.Session, func(), error) {
	conn, err := d.db.Conn(ctx)
	if err != nil {
		return nil, nil, err
	}
	return postgres.OnSQLConn(conn), func() { _ = conn.Close() }, nil
}

// The whole contract, through database/sql: of the first strategy with pgx and with pq, and of the one that sends and
// reads arrays with pq, which is less like pgx. (What the others send, settingOutcomes sends through every driver.)
func TestSQLConformance(t *testing.T) {
	t.Parallel()
	for _, driver := range sqlDrivers {
		t.Run(driver.name, func(t *testing.T) {
			t.Parallel()
			if driver.name == "pq that prepares" {
				t.Skip("pq's other way to send parameters")
			}
			for _, strategy := range []strategies.Strategy{strategies.TokenBucket{}, strategies.SlidingWindow{}} {
				t.Run(strategy.Name(), func(t *testing.T) {
					t.Parallel()
					if strategy.Name() != "token_bucket" && (testing.Short() || driver.name != "pq") {
						t.Skip("it shares the way to Postgres with the first strategy")
					}
					strategytest.RunOn(t, newMigrated, strategy, func(t *testing.T, pool *pgxpool.Pool) strategytest.Driver {
						// Whoever waits in a deadlock is found before an impatient call gives up.
						url := with(databaseURL(pool), "deadlock_timeout", "15ms")
						return sqlDriver{openSQL(t, driver.open, url, 16)}
					})
				})
			}
		})
	}
}

// newSQLLimiter is closed with the test.
func newSQLLimiter(t *testing.T, db *sql.DB, config pglimit.Config) *pglimit.Limiter {
	t.Helper()
	config.Timeout = cmp.Or(config.Timeout, time.Minute) // as newLimiter
	limiter, err := pglimit.NewSQL(db, strategies.TokenBucket{}, config)
	must(t, err)
	t.Cleanup(func() { must(t, limiter.Close(context.Background())) })
	return limiter
}
