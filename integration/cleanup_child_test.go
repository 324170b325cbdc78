package integration

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/cleanup"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// TestCleanupChild is not a test but the other process of the two above.
func TestCleanupChild(t *testing.T) {
	task, url, ok := strings.Cut(task(), " ")
	if !ok {
		t.Skip("runs as a child of other tests")
	}
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	switch task {
	case "sweep":
		cleanupStart(t, pool, cleanup.Config{}, cleanupEndless{})
	case "hold":
		locker, err := cleanup.NewLocker(pool, cleanup.LockerConfig{Heartbeat: 250 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := locker.Lock(t.Context(), "child"); err != nil {
			t.Fatal(err)
		}
		fmt.Println("holding")
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // until the parent is gone
	os.Exit(1)
}

// cleanupEndless is a strategy that never gets through.
type cleanupEndless struct{ strategies.Strategy }

func (cleanupEndless) Name() string { return "endless" }

func (cleanupEndless) Sweep(_ context.Context, _ pglimit.Session, from pglimit.Cursor, _ int) (pglimit.Swept, error) {
	if from == 0 {
		fmt.Println("sweeping")
	}
	return pglimit.Swept{Next: from + 1}, nil
}

// cleanupChild starts this program again, to do what TestCleanupChild says.
func cleanupChild(t *testing.T, pool *pgxpool.Pool, task string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd, out := child(t, "TestCleanupChild", task+" "+databaseURL(pool))
	return cmd, bufio.NewScanner(out)
}

func cleanupHears(t *testing.T, from *bufio.Scanner, what string) {
	t.Helper()
	var said []string
	for from.Scan() {
		if from.Text() == what {
			return
		}
		said = append(said, from.Text())
	}
	t.Fatalf("the child ended without saying %q: %q", what, said)
}

func (cleanupEndless) GiveBack(context.Context, pglimit.Session, []pglimit.Refund) error { return nil }
