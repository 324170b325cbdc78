package integration

import (
	"context"
	"database/sql"
	"errors"
	"net"
	"net/url"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/lib/pq"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
)

func beginSQL(t *testing.T, db *sql.DB) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(context.WithoutCancel(t.Context()), nil)
	must(t, err)
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

// An error of the limiter leaves the caller's transaction as usable as pgx's is.
func TestSQLTransactionSurvivesAnError(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy) {
		if strategy.Name() == "for_update_nowait" {
			t.Skip("does not wait")
		}
		holder := begin(t, pool)
		take(t, holder, strategy, "b", hours)
		type transaction struct {
			session rate.Session
			exec    func(string) error
			commit  func() error
		}
		transactions := map[string]func() transaction{"pgx.Tx": func() transaction {
			tx := begin(t, pool)
			return transaction{postgres.InTx(tx), func(s string) error { return second(tx.Exec(t.Context(), s)) }, func() error { return tx.Commit(t.Context()) }}
		}}
		for _, driver := range sqlDrivers {
			db := openSQL(t, driver.open, databaseURL(pool), 4)
			transactions[driver.name] = func() transaction {
				tx := beginSQL(t, db)
				return transaction{postgres.InSQLTx(tx), func(s string) error { return second(tx.ExecContext(t.Context(), s)) }, tx.Commit}
			}
		}
		for name, begin := range transactions {
			// Of several requests the last one's row is held: a savepoint undoes all.
			tx := begin()
			must(t, tx.exec("set local lock_timeout = '20ms'"))
			_, err := strategy.Take(t.Context(), tx.session, asks(hours, "a", "b"))
			if pg := (*pgconn.PgError)(nil); !errors.Is(err, pglimit.ErrLocked) || !errors.As(err, &pg) || pg.Code != "55P03" || pg.Message == "" {
				t.Errorf("%s: %v", name, err)
			}
			d, err := strategy.Take(t.Context(), tx.session, asks(hours, "a"))
			if err != nil || !d[0].Allowed {
				t.Errorf("%s: after the error %+v, %v", name, d, err)
			}
			must(t, strategy.Reset(t.Context(), tx.session, "test", "a"))
			must(t, tx.commit())

			// Of a single request, token_bucket's error has aborted the transaction. The others work in a
			// savepoint, because they may have to try again.
			tx = begin()
			must(t, tx.exec("set local lock_timeout = '20ms'"))
			if _, err := strategy.Take(t.Context(), tx.session, asks(hours, "b")); !errors.Is(err, pglimit.ErrLocked) {
				t.Errorf("%s: %v", name, err)
			}
			aborts := strategy.Name() == "token_bucket"
			if aborted, lost := tx.exec("select 1") != nil, tx.commit() != nil; aborted != aborts || lost != aborts {
				t.Errorf("%s: the transaction was aborted: %t, and lost: %t; want %t", name, aborted, lost, aborts)
			}
		}
	})
}

// What fails is told apart as with pgx.
func TestSQLErrors(t *testing.T) {
	t.Parallel()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	must(t, closed.Close())
	migrated := databaseURL(newMigrated(t))
	role := newRole(t, migrated)
	for _, driver := range sqlDrivers {
		for name, test := range map[string]struct {
			url   string
			cause error
		}{
			"nobody listens": {"postgres://postgres@" + closed.Addr().String() + "/postgres", pglimit.ErrUnavailable},
			"not migrated":   {newDatabase(t), pglimit.ErrNotMigrated},
			"no database":    {serverFor(t).urlOf("pglimit_test_none"), pglimit.ErrNotMigrated},
			"no right":       {with(migrated, "role", role), pglimit.ErrPermission},
			"no such role":   {asNobody(migrated), pglimit.ErrPermission},
		} {
			db := openSQL(t, driver.open, test.url, 4)
			limiter := newSQLLimiter(t, db, pglimit.Config{Name: "test", Limit: hours, OnError: func(_ context.Context, failed pglimit.Failure) (pglimit.Decision, error) {
				return pglimit.Decision{}, failed.Err
			}})
			for range 3 {
				if _, err := limiter.Allow(t.Context(), "k"); !errors.Is(err, test.cause) {
					t.Errorf("%s, %s: %v", driver.name, name, err)
				}
			}
			for deadline := time.Now().Add(time.Minute); errors.Is(test.cause, pglimit.ErrUnavailable) && limiter.Stats().Open == 0 && time.Now().Before(deadline); {
				_, _ = limiter.Allow(t.Context(), "k") // it opens when a fresh connection has failed too
			}
			if open := limiter.Stats().Open == 1; open != errors.Is(test.cause, pglimit.ErrUnavailable) {
				t.Errorf("%s, %s: open %v", driver.name, name, open)
			}
		}
	}
}

// asNobody is the address with a role that does not exist.
func asNobody(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.Scheme == "" {
		return address + " user=pglimit_test_nobody"
	}
	u.User = url.User("pglimit_test_nobody")
	return u.String()
}

// Arrays reach Postgres, and come back, as they were. An error that comes after the row, at the
// commit, is not lost.
func TestSQLValuesReachPostgres(t *testing.T) {
	t.Parallel()
	eachSQLDriver(t, func(t *testing.T, pool *pgxpool.Pool, open func(int) *sql.DB) {
		on := postgres.OnSQLDB(open(2))
		texts := []string{"", " ", "NULL", "a,b", `"`, `\`, `\"{}'%$1?`, "é🔑\n\t", "{1,2}"}
		numbers := []int64{0, -1, 1<<63 - 1, -1 << 63}
		var gotTexts, noTexts []string
		var gotNumbers, rows, empty []int64
		var null, yes *bool
		must(t, on.Row(t.Context(), "select $1::text[], $2::bigint[], array[[1, 2], [3, 4]]::bigint[], $3::bigint[], $4::text[], null::boolean, $5::boolean, $6::bigint",
			[]any{texts, numbers, []int64{}, []string(nil), true, nil}, &gotTexts, &gotNumbers, &rows, &empty, &noTexts, &null, &yes, nil))
		if !slices.Equal(gotTexts, texts) || !slices.Equal(gotNumbers, numbers) || !slices.Equal(rows, []int64{1, 2, 3, 4}) ||
			empty == nil || len(empty) > 0 || noTexts != nil || null != nil || yes == nil || !*yes {
			t.Errorf("%q %v %v %v %v %v %v", gotTexts, gotNumbers, rows, empty, noTexts, null, yes)
		}

		execute(t, pool, "create table late (n int unique deferrable initially deferred); insert into late values (1)")
		var n int64
		if err := on.Row(t.Context(), "insert into late values ($1::int) returning n", []any{int64(1)}, &n); sqlState(err) != "23505" {
			t.Errorf("%d, %v", n, err)
		}
	})
}

// A decision is one round trip, and with a lib/pq that prepares two.
func TestSQLRoundTrips(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	timelessly(t, pool)
	var trips atomic.Int64
	config, err := pgxpool.ParseConfig(databaseURL(pool))
	must(t, err)
	config.ConnConfig.DialFunc = (&tripDialer{trips: &trips}).DialContext
	prepares, err := pq.NewConnector(with(databaseURL(pool), "sslmode", "disable"))
	must(t, err)
	binary, err := pq.NewConnector(with(with(databaseURL(pool), "sslmode", "disable"), "binary_parameters", "yes"))
	must(t, err)
	for _, connector := range []*pq.Connector{prepares, binary} {
		connector.Dialer(&tripDialer{trips: &trips})
	}
	for _, test := range []struct {
		name string
		db   *sql.DB
		want int64
	}{
		// Without its ping of a connection that was idle for a second.
		{"pgx", stdlib.OpenDB(*config.ConnConfig, stdlib.OptionShouldPing(func(context.Context, stdlib.ShouldPingParams) bool { return false })), 1},
		{"pq", sql.OpenDB(binary), 1},
		{"pq that prepares", sql.OpenDB(prepares), 2},
	} {
		for _, key := range []string{"warm", "k"} { // the first connects, and prepares
			for _, keys := range [][]string{{key}, {key + "a", key + "b"}} {
				before := trips.Load()
				_, err := strategies.TokenBucket{}.Take(t.Context(), postgres.OnSQLDB(test.db), asks(hours, keys...))
				must(t, err)
				if n := trips.Load() - before; key == "k" && n != test.want {
					t.Errorf("%s: %d round trips for %q, want %d", test.name, n, keys, test.want)
				}
			}
		}
		must(t, test.db.Close())
	}
}

// tripDialer dials connections whose round trips are counted.
type tripDialer struct {
	net.Dialer
	trips *atomic.Int64
}

func (d *tripDialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := d.Dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &tripCounter{Conn: conn, trips: d.trips}, nil
}

func (d *tripDialer) Dial(network, address string) (net.Conn, error) {
	return d.DialContext(context.Background(), network, address)
}

func (d *tripDialer) DialTimeout(network, address string, _ time.Duration) (net.Conn, error) {
	return d.Dial(network, address)
}
