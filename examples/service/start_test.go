package main

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"
)

const runsMain = "SERVICE_TEST_RUNS_MAIN"

// TestMain makes the binary of the tests the program itself, for [program].
func TestMain(m *testing.M) {
	if os.Getenv(runsMain) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// program is a process of its own, which is killed after a minute.
func program(t *testing.T, database string, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	command := exec.CommandContext(ctx, os.Args[0], args...)
	command.Env = append(os.Environ(), runsMain+"=1", "DATABASE_URL="+database)
	return command
}

// A mistake in the arguments ends the program before it starts a Postgres, and is reported once.
func TestMistakes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args, want string
	}{
		{"extra", `"extra\" is too much`},
		{"--load -5", "must be a number from 0 to 1000"},
		{"--load many", "must be a number from 0 to 1000"},
		{"--load 1001", "must be a number from 0 to 1000"},
		{"--listen foo", "it must be host:port, such as 127.0.0.1:8081"},
		{"--listen foo --database-url postgres://127.0.0.1:1/x", "choose another address with --listen, such as 127.0.0.1:8081"},
		{"--listen 192.0.2.1:8081", "choose another address with --listen, such as 127.0.0.1:8081"},
		{"--database-url postgres://:hidden@h:x/y", "--database-url"},
		{"--bogus", "--help lists the flags"},
		{"--listen 127.0.0.1:0 postgres://u:hidden@h/x", `"...\" is too much`},
		{"--listen 127.0.0.1:0 host=h password=hidden", `"...\" is too much`},
	} {
		says, err := program(t, "", strings.Fields(c.args)...).CombinedOutput()
		if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 1 {
			t.Errorf("%s: %v", c.args, err)
		}
		if lines := strings.Count(string(says), "\n"); lines != 1 || !strings.Contains(string(says), c.want) || strings.Contains(string(says), "hidden") {
			t.Errorf("%s: it says %s", c.args, says)
		}
	}
}

// The help says each default once, and no password.
func TestHelp(t *testing.T) {
	t.Parallel()
	says, err := program(t, "postgres://me:hidden@127.0.0.1:1/x", "--help").CombinedOutput()
	if err != nil {
		t.Error(err)
	}
	for line := range strings.SplitSeq(string(says), "\n") {
		if strings.Count(line, "(default") > 1 || strings.Contains(line, "hidden") {
			t.Error(line)
		}
	}
	if !strings.Contains(string(says), "-load users\n") {
		t.Errorf("it says %s", says)
	}
}

// While Postgres is down the service listens, and says which database it waits for.
func TestStartsWhilePostgresIsDown(t *testing.T) {
	t.Parallel()
	service := program(t, "postgres://me:hidden@127.0.0.1:1/x", "--listen", "127.0.0.1:0")
	says, err := service.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := service.Start(); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	lines, page := bufio.NewScanner(says), ""
	for (page == "" || !strings.Contains(said.String(), "the migration waits for the server")) && lines.Scan() {
		said.WriteString(lines.Text() + "\n")
		if found := regexp.MustCompile(`the admin page (http://\S+/)admin/,`).FindStringSubmatch(lines.Text()); found != nil {
			page = found[1]
			for path, want := range map[string]int{"healthz": 200, "search": 503} {
				if got := get(t, page+path, "ann"); got.status != want {
					t.Errorf("/%s: %d, want %d", path, got.status, want)
				}
			}
		}
	}
	if err := service.Process.Signal(os.Interrupt); err != nil {
		t.Error(err)
	}
	for lines.Scan() {
		said.WriteString(lines.Text() + "\n")
	}
	if err := service.Wait(); err != nil {
		t.Errorf("stopped: %v", err)
	}
	if !strings.HasPrefix(said.String(), "using the database of DATABASE_URL, x on 127.0.0.1:1: migrating its schema pglimit,") || page == "" || strings.Contains(said.String(), "hidden") {
		t.Errorf("it says %s", said.String())
	}
}
