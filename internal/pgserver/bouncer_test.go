package pgserver

import (
	"errors"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestBouncer(t *testing.T) {
	t.Parallel()
	needsLocal(t)
	if _, err := findBouncer(); errors.Is(err, ErrNoBouncer) && os.Getenv("CI") != "true" {
		t.Skipf("%v: apt-get install pgbouncer", err)
	}
	server, err := Start(t.Context(), Options{From: []Source{Local}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Stop() })
	b, err := StartBouncer(t.Context(), server.URL("template1"), map[string]string{"pool_mode": "transaction"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Stop() })

	for database, want := range map[string]string{"": "template1", "postgres": "postgres"} {
		var got string
		if err := connect(t, b.URL(database)).QueryRow(t.Context(), "select current_database()").Scan(&got); err != nil || got != want {
			t.Errorf("through it database %q is %q, want %q: %v", database, got, want, err)
		}
	}
	u, err := url.Parse(b.URL(""))
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(superuser, "guess")
	if _, err := pgx.Connect(t.Context(), u.String()); err == nil {
		t.Error("somebody without the password was let in")
	}

	// With connections open.
	if err := b.Stop(); err != nil {
		t.Error(err)
	}
	if _, err := pgx.Connect(t.Context(), b.URL("")); err == nil {
		t.Error("it answers after Stop")
	}

	_, err = StartBouncer(t.Context(), server.URL(""), map[string]string{"pool_mode": "nonsense"})
	if err == nil || !strings.Contains(err.Error(), "cannot load config file") {
		t.Errorf("a setting that is none: %v", err)
	}
}
