package migrations

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/migrations/internal/functions"
)

func TestFilesAreNumberedFromOneWithoutGaps(t *testing.T) {
	t.Parallel()
	entries, err := FS.ReadDir("sql")
	if err != nil || len(entries) != len(known) {
		t.Fatalf("%d files, %d migrations known: %v", len(entries), len(known), err)
	}
	for i, m := range known {
		if want := fmt.Sprintf("sql/%05d_%s.sql", i+1, m.Name); m.file() != want || "sql/"+entries[i].Name() != want || m.Name == "" {
			t.Errorf("migration %d: file %q is known as %+v", i+1, entries[i].Name(), m)
		}
		if m.Applied || !m.AppliedAt.IsZero() {
			t.Errorf("%+v: known as applied", m)
		}
	}
}

// The functions stand in the folder, and what runs is made of it.
func TestTheGeneratedMigrationIsWhatTheFolderHolds(t *testing.T) {
	t.Parallel()
	want, err := functions.Generate(".")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := FS.ReadFile(functions.Path); err != nil || string(got) != want {
		t.Errorf("%s is not made of the files in functions as they are now: run go generate ./migrations (%v)", functions.Path, err)
	}
}

// What a backslash in a string means depends on standard_conforming_strings: of whoever migrates, and,
// in a function's body, of whoever calls it.
func TestNoSQLHasABackslash(t *testing.T) {
	t.Parallel()
	for _, m := range known {
		for line := range strings.Lines(m.section(true) + m.section(false)) {
			if strings.Contains(line, `\`) {
				t.Errorf("there is a backslash in %s", line)
			}
		}
	}
}

// All migrations run in one transaction, so none may ask to run outside.
func TestEveryMigrationGoesBothWaysInsideATransaction(t *testing.T) {
	t.Parallel()
	for _, m := range known {
		text, err := FS.ReadFile(m.file())
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "NO TRANSACTION") {
			t.Errorf("%s runs outside a transaction", m.file())
		}
		for _, section := range []string{"-- +goose Up\n", "-- +goose Down\n"} {
			if strings.Count(string(text), section) != 1 {
				t.Errorf("%s does not have %q once", m.file(), section)
			}
		}
		if up, down := m.section(true), m.section(false); up == "" || down == "" {
			t.Errorf("%s: up has %d bytes, down %d", m.file(), len(up), len(down))
		}
	}
}

func TestPendingAreTheRequiredOnesThenTheOptional(t *testing.T) {
	t.Parallel()
	versions := func(from, to int64) (l appliedList) {
		for v := from; v <= to; v++ {
			l = append(l, Migration{Version: v})
		}
		return l
	}
	for name, test := range map[string]struct {
		applied appliedList
		opts    []Option
		want    string
	}{
		"nothing applied":                {nil, nil, "[1 3 2]"},
		"nothing applied, one left out":  {nil, []Option{WithoutExclusionRange()}, "[1 3]"},
		"the optional one was refused":   {append(versions(1, 1), versions(3, 3)...), nil, "[2]"},
		"the optional one came early":    {versions(2, 2), nil, "[1 3]"},
		"some applied":                   {versions(1, 1), nil, "[3 2]"},
		"everything applied":             {versions(1, 3), nil, "[]"},
		"left out, but applied before":   {versions(1, 3), []Option{WithoutExclusionRange()}, "[]"},
		"an older release was here":      {versions(1, 2), nil, "[3]"},
		"a newer release was here":       {versions(1, 4), nil, "[]"},
		"a newer one, without exclusion": {append(versions(1, 1), versions(3, 4)...), nil, "[]"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := []int64{}
			for _, m := range newOptions(test.opts).pending(test.applied) {
				got = append(got, m.Version)
			}
			if fmt.Sprint(got) != test.want {
				t.Errorf("pending %v, want %s", got, test.want)
			}
		})
	}
}

func TestErrorsAreOneLineAndKeepTheirCause(t *testing.T) {
	t.Parallel()
	cause := &pgconn.PgError{Severity: "ERROR", Code: "2BP01", Message: "cannot drop schema pglimit", Detail: "function pglimit.a() depends\nfunction pglimit.b() depends"}
	err := fail("cannot drop schema pglimit", fmt.Errorf("some\n\twrapping: %w", cause))
	want := "migrations: cannot drop schema pglimit: ERROR: cannot drop schema pglimit (SQLSTATE 2BP01): function pglimit.a() depends, function pglimit.b() depends"
	if err.Error() != want {
		t.Errorf("got  %s\nwant %s", err, want)
	}
	if got := (*pgconn.PgError)(nil); !errors.As(err, &got) || got != cause {
		t.Errorf("the cause is lost: %#v", got)
	}
	if err := fail("cannot commit", errors.New("failed:\n\ton two lines")); err.Error() != "migrations: cannot commit: failed: on two lines" {
		t.Errorf("got %s", err)
	}
}

func TestNilPoolIsAnErrorNotAPanic(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	for name, call := range map[string]func(*pgxpool.Pool) error{
		"Up":      func(p *pgxpool.Pool) error { return Up(ctx, p) },
		"Down":    func(p *pgxpool.Pool) error { return Down(ctx, p) },
		"DownTo":  func(p *pgxpool.Pool) error { return DownTo(ctx, p, 0) },
		"Status":  func(p *pgxpool.Pool) error { _, err := Status(ctx, p); return err },
		"Pending": func(p *pgxpool.Pool) error { _, err := Pending(ctx, p); return err },
	} {
		if err := call(nil); !errors.Is(err, errNoPool) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDownToANegativeVersionIsRefused(t *testing.T) {
	t.Parallel()
	if err := DownTo(t.Context(), (*pgxpool.Pool)(nil), -1); err == nil || !strings.Contains(err.Error(), "-1 is negative") {
		t.Errorf("got %v", err)
	}
}

func TestUnreachableServerIsOneClearLine(t *testing.T) {
	t.Parallel()
	// Port 1 is reserved, nothing listens there; localhost may be two addresses, of
	// which pgx reports each on a line of its own.
	pool, err := pgxpool.New(t.Context(), "postgres://nobody@localhost:1/nowhere?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	for name, err := range map[string]error{"Up": Up(t.Context(), pool), "Down": Down(t.Context(), pool)} {
		if err == nil || strings.Contains(err.Error(), "\n") ||
			!strings.HasPrefix(err.Error(), "migrations: cannot connect to the database: failed to connect") {
			t.Errorf("%s: %v", name, err)
		}
		var connect *pgconn.ConnectError
		if !errors.As(err, &connect) {
			t.Errorf("%s: no ConnectError in %#v", name, err)
		}
	}
}

func TestNegativeLockTimeoutIsRefused(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), "postgres://nobody@localhost:1/nowhere")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if err := Down(t.Context(), pool, WithLockTimeout(-time.Second)); err == nil || !strings.Contains(err.Error(), "WithLockTimeout(-1s)") {
		t.Errorf("got %v", err)
	}
}

// Postgres counts in milliseconds, and takes 0 for no limit.
func TestLockTimeoutsAreRoundedUp(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{0: "0", 1: "1", time.Millisecond: "1", time.Second + 1: "1001"} {
		if got := milliseconds(d); got != want {
			t.Errorf("%v is %s ms, not %s", d, got, want)
		}
	}
}
