package main

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// withoutDatabase clears what names a database in the tester's environment.
func withoutDatabase(t *testing.T) {
	t.Helper()
	for _, name := range []string{"DATABASE_URL", "PGHOST", "PGHOSTADDR", "PGPORT", "PGDATABASE", "PGUSER", "PGSERVICE", "PGAPPNAME", "PGCONNECT_TIMEOUT"} {
		t.Setenv(name, "")
	}
}

// The driver does not read PGHOSTADDR, so it would connect to another server than psql.
func TestPGHOSTADDRIsRefused(t *testing.T) {
	withoutDatabase(t)
	t.Setenv("PGHOSTADDR", "192.0.2.1")
	for _, url := range []string{"", "postgres:///x", "postgres://h/x", "host=h"} {
		if _, err := (&app{databaseURL: url}).poolConfig(); err == nil || !strings.HasPrefix(err.Error(), "PGHOSTADDR is 192.0.2.1") || !strings.Contains(err.Error(), "PGHOST") {
			t.Errorf("%q: %v", url, err)
		}
	}
}

func TestConnectionDefaultsGiveWayToTheURL(t *testing.T) {
	withoutDatabase(t)
	for url, want := range map[string]struct {
		name    string
		timeout time.Duration
	}{
		"postgres://h/x": {"pglimit", 5 * time.Second},
		"postgres://h/x?application_name=mine&connect_timeout=9": {"mine", 9 * time.Second},
	} {
		config, err := (&app{databaseURL: url}).poolConfig()
		if err != nil {
			t.Fatal(err)
		}
		c := config.ConnConfig
		if name := c.RuntimeParams["application_name"]; name != want.name || c.ConnectTimeout != want.timeout {
			t.Errorf("%s: %q, %v", url, name, c.ConnectTimeout)
		}
	}
}

// What asks once prepares nothing, which would be in the way of others behind PgBouncer; the
// load of a bench is sent as a service would. Who names a mode has that everywhere.
func TestStatementsAreSentAsTheURLSays(t *testing.T) {
	withoutDatabase(t)
	for url, want := range map[string][2]pgx.QueryExecMode{
		"postgres://h/x": {pgx.QueryExecModeExec, pgx.QueryExecModeCacheStatement},
		"host=h":         {pgx.QueryExecModeExec, pgx.QueryExecModeCacheStatement},
		"postgres://h/x?default_query_exec_mode=cache_statement": {pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheStatement},
		"postgres://h/x?default_query_exec_mode=exec":            {pgx.QueryExecModeExec, pgx.QueryExecModeExec},
		"host=h default_query_exec_mode=simple_protocol":         {pgx.QueryExecModeSimpleProtocol, pgx.QueryExecModeSimpleProtocol},
	} {
		a := &app{databaseURL: url}
		own, err := a.poolConfig()
		if err != nil {
			t.Errorf("%q: %v", url, err)
			continue
		}
		got := [2]pgx.QueryExecMode{own.ConnConfig.DefaultQueryExecMode, a.loadConfig(own).ConnConfig.DefaultQueryExecMode}
		if got != want {
			t.Errorf("%q: the modes are %v, want %v", url, got, want)
		}
	}
}

// What is refused lest it be printed must not be what somebody means.
func TestUnusualConnectionStringsAreTaken(t *testing.T) {
	withoutDatabase(t)
	for url, want := range map[string]string{
		"postgres://u:p%40ss%2Fword@my-host_1.example:5432/x": "my-host_1.example",
		"postgres://u:p?#ss@h/x":                              "h",
		"postgresql://u:p@h/d%40b?application_name=me@box":    "h",
		"postgres://u:p@bücher.example/x":                     "bücher.example",
		"postgres://u:p@[fe80::1%25eth0]:5432/x":              "fe80::1%eth0",
		"postgres://u:p@/x?host=/run/some+where@here":         "/run/some+where@here",
		"host=/run/postgresql password=a@b/c dbname=d@b":      "/run/postgresql",
	} {
		config, err := (&app{databaseURL: url}).poolConfig()
		if err != nil {
			t.Errorf("%q: %v", url, err)
		} else if got := config.ConnConfig.Host; got != want {
			t.Errorf("%q: the host is %q, not %q", url, got, want)
		}
	}
}

func TestHostOfTheEnvironmentIsRefusedByItsName(t *testing.T) {
	withoutDatabase(t)
	t.Setenv("PGHOST", "me@h")
	if _, err := (&app{}).poolConfig(); err == nil || !strings.HasPrefix(err.Error(), "PGHOST: the host has characters") {
		t.Errorf("got %v", err)
	}
}

func TestNumbersOfTheConnectionAreNamed(t *testing.T) {
	withoutDatabase(t)
	wrong := func(url, want string) {
		t.Helper()
		if _, err := (&app{databaseURL: url}).poolConfig(); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
	wrong("postgres://h/x?pool_max_conns=many", `--database-url: cannot parse pool_max_conns (strconv.ParseInt: parsing "many": invalid syntax)`)
	wrong("postgres://h/x?connect_timeout=5s", `--database-url: invalid connect_timeout (strconv.ParseInt: parsing "5s": invalid syntax)`)
	t.Setenv("PGHOST", "h")
	t.Setenv("PGPORT", "http")
	wrong("", `PGHOST: invalid port`)
}

func TestConnectionStringErrorsKeepThePassword(t *testing.T) {
	withoutDatabase(t)
	const secret = "opensesame"
	for url, want := range map[string]string{
		"postgres://u:" + secret + "%zz@h/x":                       "is not a connection string",
		"postgres://u:" + secret + "/more@h:5432/x":                "is not a connection string",
		"postgres://u:sec:" + secret + "@h:port/x":                 "is not a connection string",
		"mysql://u:" + secret + "@h/x":                             "is not a connection string",
		"postgres://u:sec@" + secret + "#pw@127.0.0.1:1/x":         "is not a connection string",
		"postgres://u:sec@h1," + secret + "@127.0.0.1:1/x":         "is not a connection string",
		"postgres://u:sec@" + secret + "/pw@127.0.0.1:1/x":         "is not a connection string",
		"host=" + secret + "@h dbname=x":                           "is not a connection string",
		"host=h password='" + secret:                               "is not a connection string",
		"postgres://u:" + secret + "@h/x?sslmode=no":               "sslmode is invalid",
		"postgres://h/x?target_session_attrs=a&password=" + secret: "unknown target_session_attrs",
	} {
		_, err := (&app{databaseURL: url}).poolConfig()
		switch {
		case err == nil:
			t.Errorf("%q is taken", url)
		case strings.Contains(err.Error(), secret) || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "--database-url"):
			t.Errorf("%q: %v", url, err)
		}
	}
}
