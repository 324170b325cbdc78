package integration

import (
	"strconv"
	"strings"
	"testing"

	"github.com/pglimit/ratelimit/migrations"
)

func cliNamesUnreachableServer(t *testing.T, c cli) {
	const secret = "opensesame"
	for _, command := range [][]string{{"allow", "k", "--limit", "1/1h"}, {"pause", "k", "--for", "1h"}, {"migrate", "up"}, {"cleanup"}} {
		c.env = []string{"DATABASE_URL=postgres://u:" + secret + "@127.0.0.1:1/x"}
		c.run(t, command...).fails(t, "pglimit: cannot connect", "127.0.0.1:1", "connection refused", "check")
	}
	for _, url := range []string{
		"postgres://u:" + secret + "@127.0.0.1:1/x",
		"postgres://u:" + secret + "/%zz@127.0.0.1:1/x",
		"postgres://u:x:" + secret + "@h/x?sslmode=nonsense",
		"host=127.0.0.1 port=" + secret + " password=" + secret,
		"hostname password='" + secret,
		"postgres://u:sec@" + secret + "#pw@127.0.0.1:1/x",
		"postgres://u:sec@" + secret + "/pw@127.0.0.1:1/x",
	} {
		r := c.run(t, "reset", "k", "--database-url", url)
		r.fails(t)
		if strings.Contains(r.stderr, secret) {
			t.Errorf("the password is in %s", r.stderr)
		}
	}
	c.env = nil
	c.run(t, "migrate", "status").fails(t, "--database-url", "DATABASE_URL", "PGHOST")
}

func cliNeedsMigrations(t *testing.T, c cli) {
	c, _ = c.on(t)
	for _, command := range [][]string{{"allow", "k", "--limit", "1/1h"}, {"peek", "k"}, {"pause", "k", "--for", "1h"}, {"top"}} {
		c.run(t, command...).fails(t, "pglimit migrate up")
	}
}

func cliRefusesWrongCommandLines(t *testing.T, c cli) {
	c, _ = c.onMigrated(t)
	for _, test := range []struct {
		says string
		args []string
	}{
		{`did you mean allow? (see "pglimit --help")`, []string{"alow"}},
		{`pglimit migrate up|down|status|sql|grants`, []string{"migrate"}},
		{`there is no command "pglimit alow", did you mean allow?`, []string{"alow", "k", "--limit", "1/s"}},
		{`there is no command "pglimit migrate upp"`, []string{"migrate", "upp", "--to", "3"}},
		{`there is no command "pglimit migrate upp"`, []string{"migrate", "upp"}},
		{`--nonsense`, []string{"peek", "k", "--nonsense"}},
		{`unknown flag: --limits (see "pglimit allow --help")`, []string{"allow", "k", "--limits", "1/s"}},
		{`needs a KEY`, []string{"allow"}},
		{`quote a key that has spaces`, []string{"allow", "a", "b", "--limit", "1/s"}},
		{`needs a --limit`, []string{"allow", "k"}},
		{`limit "five": it must be tokens/period`, []string{"allow", "k", "--limit", "five"}},
		{`tokens is 0: it must be at least 1`, []string{"allow", "k", "--limit", "0/1m"}},
		{`--tokens is 6: more than the burst of 5`, []string{"allow", "k", "--limit", "5/1m", "--tokens", "6"}},
		{`--tokens is 0`, []string{"allow", "k", "--limit", "5/1m", "--tokens", "0"}},
		{`--tokens is "two": it must be a whole number`, []string{"allow", "k", "--limit", "5/1m", "--tokens", "two"}},
		{`--strategy is "magic": it must be one of token_bucket,`, []string{"reset", "k", "--strategy", "magic"}},
		{`--output is "xml": it must be one of text, json`, []string{"storage", "--output", "xml"}},
		{`burst is 5`, []string{"allow", "k", "--limit", "5/1m", "--strategy", "exclusion_range"}},
		{`KEY is empty`, []string{"allow", "", "--limit", "5/1m"}},
		{`KEY "\xff" is not valid UTF-8`, []string{"allow", "\xff", "--limit", "5/1m"}},
		{`--limiter is empty`, []string{"allow", "k", "--limit", "5/1m", "--limiter", ""}},
		{`KEY has 1025 bytes`, []string{"reset", strings.Repeat("k", 1025)}},
		{`down needs --to VERSION`, []string{"migrate", "down"}},
		{`--to is -1`, []string{"migrate", "down", "--to", "-1"}},
		{`removes the tables for good, with the rules of limits ("pglimit limits export" saves them): nothing was done; --yes does it`, []string{"migrate", "down", "--to", "0"}},
		{`takes no arguments`, []string{"cleanup", "now"}},
		{`--interval is 0s`, []string{"cleanup", "--interval", "0"}},
		{`--metrics goes without --once`, []string{"cleanup", "--once", "--metrics", ":9187"}},
		{`--metrics: address 9187: missing port in address (write it like 127.0.0.1:8080`, []string{"cleanup", "--metrics", "9187"}},
	} {
		c.run(t, test.args...).fails(t, test.says)
	}
}

func cliReadsLibpqVariables(t *testing.T, c cli) {
	c, pool := c.onMigrated(t)
	config := pool.Config().ConnConfig
	host, port := config.Host, config.Port
	c.env = []string{"PGHOST=" + host, "PGPORT=" + strconv.Itoa(int(port)), "PGDATABASE=" + config.Database, "PGUSER=" + config.User,
		"PGPASSWORD=" + config.Password, "PGSSLMODE=prefer"}
	c.run(t, "allow", "k", "--limit", "1/1h").exits(t, 0)
	// The flag goes first, then DATABASE_URL.
	c.env = append(c.env, "DATABASE_URL=postgres://127.0.0.1:1/x")
	c.run(t, "allow", "k", "--limit", "1/1h").fails(t, "127.0.0.1:1")
	c.run(t, "allow", "k", "--limit", "1/1h", "--database-url", pool.Config().ConnString()).exits(t, 1)
}

// A server that refuses was reached and has answered: what it said is what is printed.
func cliSaysWhatTheServerAnswered(t *testing.T, c cli) {
	url := serverFor(t).urlOf("no_such_database")
	c.env = []string{"DATABASE_URL=" + url}
	for _, args := range [][]string{
		{"allow", "k", "--limit", "1/1h"},
		{"reset", "--all", "--limiter", "api"},
		{"migrate", "up"},
		{"storage"},
		{"cleanup", "--once"},
		{"bench"},
	} {
		r := c.run(t, args...)
		r.fails(t, `database "no_such_database" does not exist (SQLSTATE 3D000)`)
		if strings.Contains(r.stderr, "no answer") || strings.Contains(r.stderr, "reach") {
			t.Errorf("%q says that the server did not answer: %s", args, r.stderr)
		}
	}
	unmigrated, _ := c.on(t)
	if r := unmigrated.run(t, "cleanup", "--once"); r.stdout != "" {
		t.Errorf("it prints %q", r.stdout)
	} else {
		r.fails(t, "pglimit migrate up")
	}
	err := migrations.Up(t.Context(), migrationPool(t, url))
	wantLine(t, err, "migrations: cannot connect to the database: ", "3D000")
}
