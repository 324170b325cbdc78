package migrations

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
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

func TestOnlyExclusionRangeIsOptional(t *testing.T) {
	t.Parallel()
	for _, m := range known {
		if m.Optional != (m.Name == "exclusion_range") {
			t.Errorf("%+v", m)
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
		up, down, err := sections(m)
		if err != nil || up == "" || down == "" {
			t.Errorf("%s: up has %d bytes, down %d: %v", m.file(), len(up), len(down), err)
		}
	}
}

func TestPendingAreTheRequiredOnesThenTheOptional(t *testing.T) {
	t.Parallel()
	versions := func(from, to int64) (l appliedList) {
		for v := from; v <= to; v++ {
			l = append(l, appliedMigration{version: v, at: time.Unix(v, 0)})
		}
		return l
	}
	for name, test := range map[string]struct {
		applied appliedList
		opts    []Option
		want    string
	}{
		"nothing applied":                {nil, nil, "[1 2 3 4 5 6 8 7]"},
		"nothing applied, one left out":  {nil, []Option{WithoutExclusionRange()}, "[1 2 3 4 5 6 8]"},
		"the optional one was refused":   {append(versions(1, 6), versions(8, 8)...), nil, "[7]"},
		"the optional one came early":    {versions(7, 7), nil, "[1 2 3 4 5 6 8]"},
		"some applied":                   {versions(1, 3), nil, "[4 5 6 8 7]"},
		"everything applied":             {versions(1, 8), nil, "[]"},
		"left out, but applied before":   {versions(1, 8), []Option{WithoutExclusionRange()}, "[]"},
		"an older release was here":      {versions(1, 7), nil, "[8]"},
		"a newer release was here":       {versions(1, 9), nil, "[]"},
		"a newer one, without exclusion": {append(versions(1, 6), versions(8, 9)...), nil, "[]"},
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
		"Version": func(p *pgxpool.Pool) error { _, err := Version(ctx, p); return err },
	} {
		if err := call(nil); !errors.Is(err, errNoPool) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDownToANegativeVersionIsRefused(t *testing.T) {
	t.Parallel()
	if err := DownTo(t.Context(), nil, -1); err == nil || !strings.Contains(err.Error(), "-1 is negative") {
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
			!strings.HasPrefix(err.Error(), "migrations: cannot reach the database: failed to connect") {
			t.Errorf("%s: %v", name, err)
		}
		var connect *pgconn.ConnectError
		if !errors.As(err, &connect) {
			t.Errorf("%s: no ConnectError in %#v", name, err)
		}
	}
}

func TestSQLTextIsPlainAndInOrder(t *testing.T) {
	t.Parallel()
	for _, up := range []bool{true, false} {
		text, err := SQL(up)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(text, "+goose") {
			t.Errorf("up %t: goose's annotations are in it", up)
		}
		steps := newOptions(nil).pending(nil)
		if !up {
			slices.Reverse(steps)
		}
		last := -1
		for _, m := range steps {
			at := strings.Index(text, fmt.Sprintf("-- ---- %d %s ----", m.Version, m.Name))
			if at <= last {
				t.Errorf("up %t: %s is at %d, what comes before it at %d", up, m.Name, at, last)
			}
			last = at
		}
		optional := strings.Index(text, "======== Optional")
		if begins := strings.Index(text, "-- ---- 7 exclusion_range ----"); optional < 0 || optional > begins ||
			strings.Contains(text[optional:begins], "-- ---- ") {
			t.Errorf("up %t: the optional part is marked at %d and begins at %d", up, optional, begins)
		}
	}
}
