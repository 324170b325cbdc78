package integration

import (
	"strings"
	"testing"

	"github.com/pglimit/ratelimit/migrations"
)

// A server that refuses was reached and has answered: what it said is what is printed.
func cliSaysWhatTheServerAnswered(t *testing.T, c cli) {
	url := serverFor(t).urlOf("no_such_database")
	c.env = []string{"DATABASE_URL=" + url}
	for _, args := range [][]string{
		{"allow", "k", "--limit", "1/1h"},
		{"reset", "--all", "--limiter", "api"},
		{"migrate", "up"},
		{"storage", "status"},
		{"cleanup", "--once"},
		{"bench"},
	} {
		r := c.run(t, args...)
		r.fails(t, `database "no_such_database" does not exist (SQLSTATE 3D000)`, "create the database or name another")
		if strings.Contains(r.stderr, "no answer") || strings.Contains(r.stderr, "reach") {
			t.Errorf("%q says that the server did not answer: %s", args, r.stderr)
		}
	}
	err := migrations.Up(t.Context(), migrationPool(t, url))
	wantLine(t, err, "migrations: cannot connect to the database: ", "3D000")
}
