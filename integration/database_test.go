package integration

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/migrations"
)

// newDatabase makes an empty database for the test and returns its URL. It is
// dropped when the test has ended, whoever is still connected.
func newDatabase(t testing.TB) string {
	t.Helper()
	return serverFor(t).newDatabase(t, "template0")
}

// newMigrated makes a migrated database for the test and returns a pool on it.
func newMigrated(t testing.TB) *pgxpool.Pool {
	t.Helper()
	s := serverFor(t)
	template, err := s.template()
	must(t, err)
	return newPool(t, s.newDatabase(t, template), 16)
}

// newPool is a pool of the test's, of at most so many connections, closed when the
// test has ended.
func newPool(t testing.TB, url string, maxConns int32) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	must(t, err)
	config.MaxConns = maxConns
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	must(t, err)
	t.Cleanup(func() {
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			pool.Close()
		}()
		select {
		case <-closed:
		case <-time.After(time.Minute): // Close waits for connections in use
			t.Errorf("the test kept %d connections of a pool", pool.Stat().AcquiredConns())
		}
	})
	return pool
}

// databaseURL is that of the pool's database, for another pool or process.
func databaseURL(pool *pgxpool.Pool) string { return pool.Config().ConnString() }

func (s *testServer) newDatabase(t testing.TB, template string) string {
	t.Helper()
	name := databaseName()
	must(t, s.create(t.Context(), name, template))
	t.Cleanup(func() {
		if err := s.drop(name); err != nil {
			t.Error(err)
		}
	})
	return s.urlOf(name)
}

// databaseName is free on a server that other test runs use at the same time.
func databaseName() string { return "pglimit_test_" + strings.ToLower(rand.Text()) }

// create copies the template. Any number may copy one at a time, as long as nobody
// is connected to it.
func (s *testServer) create(ctx context.Context, name, template string) error {
	encoding := ""
	if template == "template0" {
		encoding = " encoding 'UTF8'" // whatever the server's own is
	}
	_, err := s.admin.Exec(ctx, "create database "+name+" template "+template+encoding)
	return err
}

func (s *testServer) drop(name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err := s.admin.Exec(ctx, "drop database if exists "+name+" with (force)")
	return err
}

// makeTemplate migrates a database, to which nobody may connect from then on, not
// even autovacuum: then copies cannot fail because it is in use.
func (s *testServer) makeTemplate() (name string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	name = databaseName()
	if err := s.create(ctx, name, "template0"); err != nil {
		return "", fmt.Errorf("making the migrated template: %w", err)
	}
	s.migrated = name
	pool, err := pgxpool.New(ctx, s.urlOf(name))
	if err != nil {
		return "", err
	}
	err = migrations.Up(ctx, pool)
	if file := os.Getenv("PGLIMIT_TEST_FUNCTIONS"); err == nil && file != "" { // with a fault, of internal/mutate
		var functions []byte
		if functions, err = os.ReadFile(file); err == nil {
			_, err = pool.Exec(ctx, string(functions))
		}
	}
	pool.Close()
	if err != nil {
		return "", fmt.Errorf("migrating the template: %w", err)
	}
	_, err = s.admin.Exec(ctx, "alter database "+name+" allow_connections false")
	return name, err
}

func (s *testServer) dropTemplate() error {
	if s.migrated == "" {
		return nil
	}
	return s.drop(s.migrated)
}

// urlOf is the server's URL (or key=value text) with another database.
func (s *testServer) urlOf(database string) string {
	if !strings.Contains(s.url, "://") {
		return s.url + " dbname=" + database // of two, the last counts
	}
	u, err := url.Parse(s.url)
	if err != nil {
		return s.url // which pgx accepted; it will say what is wrong
	}
	u.Path = "/" + database
	return u.String()
}
