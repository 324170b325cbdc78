package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/testcontainers/testcontainers-go/modules/postgres"

	"github.com/pglimit/ratelimit/internal/pgserver"
)

// The environment variables by which a tester chooses the server.
const (
	// envURL names a server of the tester's, by any database on it. The role must
	// have the right to create databases and extensions; the tests make databases
	// called pglimit_test_..., and drop them.
	envURL = "PGLIMIT_TEST_DATABASE_URL"

	// envImage is what a container is made of; the official image if it is not set.
	envImage = "PGLIMIT_TEST_IMAGE"

	// envSource forces one rung: url, docker, local or embedded.
	envSource = pgserver.EnvSource
)

// rungs of the ladder on which the tests look for a server, in order. Each says
// why it bears nobody.
var rungs = []struct {
	name  string
	start func(context.Context) (*testServer, error)
}{
	{"url", startFromURL},
	{"docker", startContainer},
	{"local", startFrom(pgserver.Local)},
	{"embedded", startFrom(pgserver.Embedded)},
}

// serverSettings of the servers that we start. Nothing here outlives the tests, so
// fsync only costs time; synchronous_commit stays on, because faults that need two
// writers at once hide without it. (testcontainers' module for Postgres sets
// fsync=off by itself.) No figure of speed taken on such a server means much.
var serverSettings = map[string]string{
	"fsync":              "off",
	"synchronous_commit": "on",
	"max_connections":    "500",
	"shared_buffers":     "256MB",
	"max_wal_size":       "1GB", // no checkpoints but those that databases cause by going
	"jit":                "off", // where a setting makes every plan look dear, each took 100 ms to compile
}

// testServer is the one server of this test binary.
type testServer struct {
	url  string // of a database on it
	what string // in words, what "PostgreSQL 17.6" is followed by
	halt func() error

	container *postgres.PostgresContainer // if it is in one

	version  string
	admin    *pgxpool.Pool          // on url, to make and drop databases
	template func() (string, error) // makes the migrated template, once, and says its name
	migrated string                 // that name, as soon as there is something to drop
}

// started is set by server, and read when the tests have ended.
var started *testServer

// server starts the server for the first test that asks.
var server = sync.OnceValues(func() (*testServer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	var err error
	started, err = climb(ctx)
	return started, err
})

func serverFor(t testing.TB) *testServer {
	t.Helper()
	s, err := server()
	must(t, err)
	return s
}

// climb takes the first rung that bears, and says on stderr which and why.
func climb(ctx context.Context) (*testServer, error) {
	source, why := os.Getenv(envSource), envSource+" says so"
	if source == "" && os.Getenv(envURL) != "" {
		source, why = "url", envURL+" is set" // who names a server wants no other
	}
	known := false
	var failures []string
	for _, rung := range rungs {
		if source != "" && source != rung.name {
			continue
		}
		known = true
		s, err := rung.start(ctx)
		if err == nil {
			err = s.open(ctx)
		}
		if err != nil {
			failures = append(failures, rung.name+": "+oneLine(err))
			continue
		}
		if source == "" {
			why = strings.Join(failures, "; ")
		}
		fmt.Fprintf(os.Stderr, "integration: testing on PostgreSQL %s %s (%s)\n", s.version, s.what, why)
		return s, nil
	}
	if !known {
		return nil, fmt.Errorf("%s is %q: it must be url, docker, local or embedded", envSource, source)
	}
	return nil, errors.New("no Postgres to test on: " + strings.Join(failures, "; ") + ": install PostgreSQL or Docker, or name a server in " + envURL)
}

func startFromURL(context.Context) (*testServer, error) {
	url := os.Getenv(envURL)
	if url == "" {
		return nil, errors.New(envURL + " is not set")
	}
	return &testServer{url: url, what: "named by " + envURL, halt: func() error { return nil }}, nil
}

func startFrom(source pgserver.Source) func(context.Context) (*testServer, error) {
	return func(ctx context.Context) (*testServer, error) {
		s, err := pgserver.Start(ctx, pgserver.Options{From: []pgserver.Source{source}, Settings: serverSettings})
		if err != nil {
			return nil, err
		}
		return &testServer{url: s.URL(""), what: s.Origin(), halt: s.Stop}, nil
	}
}

// open connects; it halts a server to which it cannot.
func (s *testServer) open(ctx context.Context) error {
	config, err := pgxpool.ParseConfig(s.url)
	if err == nil {
		config.MaxConns = 8
		s.admin, err = pgxpool.NewWithConfig(ctx, config)
	}
	if err == nil {
		err = s.admin.QueryRow(ctx, "select split_part(current_setting('server_version'), ' ', 1)").Scan(&s.version)
	}
	if err != nil {
		return errors.Join(err, s.stop())
	}
	s.template = sync.OnceValues(s.makeTemplate)
	return nil
}

func (s *testServer) stop() error {
	if s.admin != nil {
		s.admin.Close()
	}
	return s.halt()
}

func stopServer() error {
	if started == nil {
		return nil
	}
	return errors.Join(started.dropTemplate(), started.stop())
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }
