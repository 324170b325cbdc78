package integration

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/migrations"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
)

// A key that the database's encoding cannot hold fails its own caller. Neighbours in the
// same batch are served.
func TestAKeyThatCannotBeStoredFailsItsCallerAlone(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		encoding string
		holds    bool // whatever bytes there are
	}{{"LATIN1", false}, {"EUC_JP", false}, {"SQL_ASCII", true}} {
		t.Run(test.encoding, func(t *testing.T) {
			t.Parallel()
			server, name := serverFor(t), databaseName()
			execute(t, server.admin, "create database "+name+" encoding '"+test.encoding+"' template template0 lc_collate 'C' lc_ctype 'C'")
			t.Cleanup(func() {
				if err := server.drop(name); err != nil {
					t.Error(err)
				}
			})
			pool := newPool(t, with(server.urlOf(name), "client_encoding", "UTF8"), 4)
			must(t, migrations.Up(t.Context(), pool))
			for _, strategy := range []strategies.Strategy{strategies.TokenBucket{}, strategies.Upsert{}} {
				limiter := newLimiter(t, pool, strategy, pglimit.Config{Name: "test", Limit: hours.WithBurst(1000), Combine: pglimit.Combine{Lanes: 1}})
				for range 5 {
					var callers sync.WaitGroup
					for i := range 32 {
						callers.Go(func() {
							if d, err := limiter.Allow(t.Context(), fmt.Sprint("neighbour ", i)); err != nil || !d.Allowed {
								t.Errorf("%s: a neighbour: %+v, %v", strategy.Name(), d, err)
							}
						})
					}
					callers.Go(func() {
						d, err := limiter.Allow(t.Context(), "🔑")
						if test.holds && (err != nil || !d.Allowed) || !test.holds && !errors.Is(err, pglimit.ErrNothingTaken) {
							t.Errorf("%s: the key: %+v, %v", strategy.Name(), d, err)
						}
					})
					callers.Wait()
				}
				if stats := limiter.Stats(); stats.Requests <= stats.RoundTrips {
					t.Errorf("%+v: nothing was combined", stats)
				}
				if err := limiter.Close(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// pgx refuses simple_protocol under some settings, which do not end by themselves: that is no outage. And the sign of
// life, by which the breaker closes, does not depend on them.
func TestSettingsThatPgxRefusesAreNoOutage(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	for _, set := range [][2]string{{"client_encoding", "LATIN1"}, {"standard_conforming_strings", "off"}} {
		url := with(databaseURL(pool), set[0], set[1])
		simple := newPool(t, with(url, "default_query_exec_mode", "simple_protocol"), 4)
		limiter := newLimiter(t, simple, strategies.TokenBucket{}, pglimit.Config{Name: "test", Limit: hours, OnError: pglimit.FailOpen})
		for range 20 { // more than the breaker bears
			if d, err := limiter.Allow(t.Context(), "k"); !errors.Is(err, pglimit.ErrSetting) || !strings.Contains(err.Error(), set[0]) {
				t.Errorf("%s: %+v, %v", set, d, err)
			}
		}
		must(t, postgres.Sign(t.Context(), postgres.OnPool(newPool(t, url, 4))))
		for _, on := range []rate.Session{postgres.OnSQLDB(openSQL(t, sqlDrivers[0].open, with(url, "default_query_exec_mode", "simple_protocol"), 1)), postgres.InTx(begin(t, simple))} {
			if _, err := (strategies.Upsert{}).Take(t.Context(), on, asks(hours, "k")); !errors.Is(err, pglimit.ErrSetting) {
				t.Errorf("%s: %v", set, err)
			}
		}
	}
}

// On a connection with another client_encoding, a key that is not ASCII would be another key. It is
// refused, on everything that a session can be.
func TestAConnectionThatMisreadsAKeyIsRefused(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	for encoding, reads := range map[string]bool{"LATIN1": false, "UTF8": true, "SQL_ASCII": true} {
		url := with(databaseURL(pool), "client_encoding", encoding)
		other := newPool(t, url, 4)
		conn, err := other.Acquire(t.Context())
		must(t, err)
		defer conn.Release()
		db := openSQL(t, sqlDrivers[0].open, url, 4)
		sqlConn, err := db.Conn(t.Context())
		must(t, err)
		defer sqlConn.Close() //nolint:errcheck // of the test
		tx, err := db.BeginTx(t.Context(), nil)
		must(t, err)
		defer tx.Rollback() //nolint:errcheck // of the test
		for name, on := range map[string]rate.Session{
			"pool": postgres.OnPool(other), "conn": postgres.OnConn(conn.Conn()), "tx": postgres.InTx(begin(t, other)), "sql.DB": postgres.OnSQLDB(db), "sql.Conn": postgres.OnSQLConn(sqlConn), "sql.Tx": postgres.InSQLTx(tx),
		} {
			for key, ascii := range map[string]bool{encoding + name: true, encoding + name + " é": false} {
				for _, keys := range [][]string{{key}, {key, "z" + encoding + name}} {
					_, err := takenOn(on, func() ([]pglimit.Decision, error) {
						return (strategies.TokenBucket{}).Take(t.Context(), on, asks(hours, keys...))
					})
					if reads || ascii {
						if err != nil {
							t.Errorf("%s, %s: %q: %v", encoding, name, keys, err)
						}
					} else if !errors.Is(err, pglimit.ErrNothingTaken) || !strings.Contains(err.Error(), "client_encoding=UTF8") {
						t.Errorf("%s, %s: %q: %v", encoding, name, keys, err)
					}
				}
			}
		}
	}
}
