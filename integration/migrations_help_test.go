package integration

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/migrations"
)

// migrationPool is a pool of the test's own; the session's time zone is not UTC.
func migrationPool(t *testing.T, url string, change ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	must(t, err)
	config.MaxConns = 2
	setting("TimeZone", "Asia/Kathmandu")(config)
	for _, c := range change {
		c(config)
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	must(t, err)
	t.Cleanup(pool.Close)
	return pool
}

func setting(name, value string) func(*pgxpool.Config) {
	return func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams[name] = value }
}

func as(role string) func(*pgxpool.Config) {
	return func(c *pgxpool.Config) {
		c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, `set role `+role)
			return err
		}
	}
}

// newRole makes a role without rights. What it comes to own in the database goes
// with it, before the database does.
func newRole(t *testing.T, url string) string {
	t.Helper()
	role := "pglimit_test_" + strings.ToLower(rand.Text())
	admin := migrationPool(t, url)
	execute(t, admin, `create role `+role)
	t.Cleanup(func() {
		conn, err := pgx.Connect(context.Background(), url)
		if err == nil {
			_, err = conn.Exec(context.Background(), `drop owned by `+role+` cascade; drop role `+role)
			_ = conn.Close(context.Background())
		}
		if err != nil {
			t.Errorf("role %s stays: %v", role, err)
		}
	})
	return role
}

// eventually asks the database until the answer is true.
func eventually(t *testing.T, pool *pgxpool.Pool, question string) {
	t.Helper()
	until(t, question, func() bool { return query[bool](t, pool, question) })
}

func wantApplied(t *testing.T, pool *pgxpool.Pool, want string) {
	t.Helper()
	status, err := migrations.Status(t.Context(), pool)
	must(t, err)
	var got []string
	for _, m := range status {
		if m.Applied {
			got = append(got, fmt.Sprint(m.Version))
		}
		if m.Applied == m.AppliedAt.IsZero() {
			t.Errorf("%+v: applied without a time, or the reverse", m)
		}
	}
	if strings.Join(got, " ") != want || len(status) < 3 {
		t.Errorf("applied %v of %d, want %s", got, len(status), want)
	}
}

func wantCode(t *testing.T, err error, code string) {
	t.Helper()
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) || pgErr.Code != code {
		t.Errorf("want SQLSTATE %s: %v", code, err)
	}
}

// wantLine wants an error of one line that says all this.
func wantLine(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) || strings.Contains(err.Error(), "\n") {
			t.Errorf("want one line that has %s: %v", part, err)
		}
	}
}

// texts are the rows of a query of one text column.
func texts(t *testing.T, pool *pgxpool.Pool, query string, args ...any) []string {
	t.Helper()
	rows, err := pool.Query(t.Context(), query, args...)
	must(t, err)
	out, err := pgx.CollectRows(rows, pgx.RowTo[string])
	must(t, err)
	return out
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func diff(t *testing.T, when string, want, got []string) {
	t.Helper()
	count := map[string]int{}
	for _, line := range want {
		count[line]++
	}
	for _, line := range got {
		count[line]--
	}
	var lines []string
	for line, n := range count {
		if n > 0 {
			lines = append(lines, "- "+line)
		} else if n < 0 {
			lines = append(lines, "+ "+line)
		}
	}
	if len(lines) > 0 {
		t.Errorf("%s:\n%s", when, fmt.Sprint(strings.Join(lines, "\n")))
	}
}
