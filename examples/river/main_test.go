package main

import (
	"bufio"
	"os"
	"os/exec"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/ratelimit/internal/pgserver"
)

// TestMain makes the binary of the tests the program itself, if the test says so.
func TestMain(m *testing.M) {
	if os.Getenv("RIVER_TEST_RUNS_MAIN") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// Of twelve mails to a customer, the last ones sleep until a token is there. They fail not once.
func TestMails(t *testing.T) {
	t.Parallel()
	postgres, err := pgserver.Start(t.Context(), pgserver.Options{Settings: map[string]string{"fsync": "off"}})
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = postgres.Stop() })
	worker := exec.CommandContext(t.Context(), os.Args[0], "ann", "ann", "ann", "ann", "ann", "ann", "ann", "ann", "ann", "ann", "ann", "ann")
	worker.Env = append(os.Environ(), "RIVER_TEST_RUNS_MAIN=1", "DATABASE_URL="+postgres.URL(""))
	worker.Stderr = t.Output()
	out, err := worker.StdoutPipe()
	if err == nil {
		err = worker.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = worker.Process.Kill(); _ = worker.Wait() })
	lines := bufio.NewScanner(out)
	for n := 0; n < 12 && lines.Scan(); n++ {
		if lines.Text() != "mailed ann" {
			t.Fatal(lines.Text())
		}
	}
	conn, err := pgx.Connect(t.Context(), postgres.URL(""))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	var attempts, failed, slept int
	const query = "select max(attempt), count(*) filter (where errors <> '{}'), count(*) filter (where (metadata->>'snoozes')::int > 0) from river_job"
	if err := conn.QueryRow(t.Context(), query).Scan(&attempts, &failed, &slept); err != nil {
		t.Fatal(err)
	}
	if attempts != 1 || failed != 0 || slept == 0 {
		t.Errorf("%d attempts at most, %d failed, %d slept", attempts, failed, slept)
	}
}
