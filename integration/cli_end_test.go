package integration

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// started runs the binary until its stderr holds a line with the word, and returns
// what waits for its end.
func (c cli) started(t *testing.T, word string, args ...string) (process *os.Process, wait func() (code int, stderr string)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	command := c.command(ctx, t, c.binary, args...)
	pipe, err := command.StderrPipe()
	must(t, err)
	must(t, command.Start())
	lines := bufio.NewReader(pipe)
	seen := ""
	for word != "" && !strings.Contains(seen, word) {
		line, err := lines.ReadString('\n')
		seen += line
		if err != nil {
			_ = command.Wait()
			if strings.Contains(seen, "no throwaway Postgres") {
				t.Skip(seen)
			}
			t.Fatalf("%q ends without saying %q:\n%s", args, word, seen)
		}
	}
	return command.Process, func() (int, string) {
		t.Helper()
		var rest bytes.Buffer
		_, err := rest.ReadFrom(lines)
		must(t, err)
		_ = command.Wait() // its error is the exit code
		return command.ProcessState.ExitCode(), seen + rest.String()
	}
}

// endsSoon interrupts a process and checks how it ends.
func endsSoon(t *testing.T, process *os.Process, wait func() (int, string), code int) (stderr string) {
	t.Helper()
	return endsSoonBy(t, process, wait, os.Interrupt, code)
}

func endsSoonBy(t *testing.T, process *os.Process, wait func() (int, string), signal os.Signal, code int) (stderr string) {
	t.Helper()
	begin := time.Now()
	must(t, process.Signal(signal))
	got, stderr := wait()
	if got != code {
		t.Errorf("exit code %d, not %d\n%s", got, code, stderr)
	}
	if took := time.Since(begin); took > time.Minute {
		t.Errorf("it takes %v to end", took)
	}
	return stderr
}

func cliCleanupEndsOnInterrupt(t *testing.T, c cli) {
	c, pool := c.onMigrated(t)
	execute(t, pool, "insert into pglimit.token_bucket (key, limiter, full_ns, token_ns, at_ns) values ('gone', 'cli', 1000, 1000, 1)")
	process, wait := c.started(t, `"removed":1,`, "cleanup", "--interval", "100ms", "--output", "json")
	stderr := endsSoon(t, process, wait, 0)
	for line := range strings.Lines(stderr) {
		var fields map[string]any
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			t.Errorf("not a line of JSON: %s", line)
		}
		for _, without := range []string{"interval", "duration"} { // a unit
			if value, ok := fields[without]; ok {
				t.Errorf("%s is %v, of what unit? %s", without, value, line)
			}
		}
	}
	for _, part := range []string{"stopped", `"interval_ms":100}`, `"duration_ms":`} {
		if !strings.Contains(stderr, part) {
			t.Errorf("it does not say %q:\n%s", part, stderr)
		}
	}
	leavesNoSession(t, pool)
	cleanupNoLocks(t, pool)
}

func cliCleanupNeedsMigrations(t *testing.T, c cli) {
	c, _ = c.on(t)
	r := c.run(t, "cleanup").exits(t, 2)
	if !strings.Contains(r.stderr, "migrate up") {
		t.Errorf("it does not say what to do:\n%s", r.stderr)
	}
	once := c.run(t, "cleanup", "--once")
	once.fails(t, "migrate up")
	if strings.Contains(once.stderr, "btree_gist") {
		t.Errorf("it blames an extension where everything is missing: %s", once.stderr)
	}
}

// locked holds the row of the key "k", from which one of two tokens was taken.
func (c cli) locked(t *testing.T) (cli, *pgxpool.Pool) {
	t.Helper()
	c, pool := c.onMigrated(t)
	c.run(t, "allow", "k", "--limit", "2/1h").exits(t, 0)
	tx := begin(t, pool)
	execute(t, tx, `select from pglimit.token_bucket for update`)
	return c, pool
}

func cliGivesUpAtTimeout(t *testing.T, c cli) {
	c, _ = c.locked(t)
	c.run(t, "allow", "k", "--limit", "2/1h", "--timeout", "8s").fails(t, "no answer within --timeout 8s") // long enough to connect, on a busy machine too
	silent := listenSilently(t)
	c.run(t, "allow", "k", "--limit", "2/1h", "--timeout", "300ms", "--database-url", "postgres://"+silent.address+"/x").
		fails(t, "no connection to PostgreSQL within --timeout 300ms")
	c.run(t, "migrate", "status", "--database-url", "postgres://"+silent.address+"/x?connect_timeout=1").
		fails(t, silent.address, "timeout")
}

// A call that waits for a lock is ended by each signal, and says nothing. A service ends tidily:
// SIGTERM is how systemd and containers end it, but one that a closed terminal ends with 0 is not started again.
func cliEndsOnSignals(t *testing.T, c cli) {
	// Where the tests run under nohup, the child would inherit that SIGHUP is
	// ignored; a signal that is handled here is none of the child's business.
	handled := make(chan os.Signal, 1)
	signal.Notify(handled, syscall.SIGHUP)
	defer signal.Stop(handled)
	locked, pool := c.locked(t)
	for sent, code := range map[syscall.Signal]int{syscall.SIGINT: 130, syscall.SIGTERM: 143, syscall.SIGHUP: 129} {
		process, wait := locked.started(t, "", "allow", "k", "--limit", "2/1h", "--timeout", "0")
		waitsForLock(t, pool)
		if stderr := endsSoonBy(t, process, wait, sent, code); stderr != "" {
			t.Errorf("%v: it complains:\n%s", sent, stderr)
		}
		leavesNoSession(t, pool)
	}
	c, _ = c.onMigrated(t)
	for sent, code := range map[syscall.Signal]int{syscall.SIGTERM: 0, syscall.SIGHUP: 129} {
		process, wait := c.started(t, "cleanup started", "cleanup", "--interval", "100ms")
		lines := strings.Split(strings.TrimSpace(endsSoonBy(t, process, wait, sent, code)), "\n")
		if last := lines[len(lines)-1]; !strings.Contains(last, "pglimit cleanup stopped") {
			t.Errorf("%v: the last that it says is %q", sent, last)
		}
		for _, line := range lines {
			if !strings.Contains(line, "level=INFO") {
				t.Errorf("%v: it complains: %s", sent, line)
			}
		}
	}
}

func leavesNoSession(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	eventually(t, pool, `select not exists (select from pg_stat_activity where application_name = 'pglimit' and datname = current_database())`)
}

func waitsForLock(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	eventually(t, pool, `select exists (select from pg_stat_activity
		where application_name = 'pglimit' and datname = current_database() and wait_event_type = 'Lock')`)
}

func cliOutlivesHangupUnderNohup(t *testing.T, c cli) {
	c, pool := c.locked(t)
	binary := c.binary
	c.binary = "/bin/sh"
	process, wait := c.started(t, "", "-c", `trap '' HUP; exec "$0" "$@"`, binary, "allow", "k", "--limit", "2/1h", "--timeout", "0")
	waitsForLock(t, pool)
	must(t, process.Signal(syscall.SIGHUP))
	// Had the first signal begun to end it, the second would kill it.
	endsSoon(t, process, wait, 130)
}

func cliEndsWhileConnecting(t *testing.T, c cli) {
	silent := listenSilently(t)
	c.env = []string{"DATABASE_URL=postgres://" + silent.address + "/x?connect_timeout=60"}
	process, wait := c.started(t, "", "allow", "k", "--limit", "2/1h", "--timeout", "0")
	<-silent.called
	if stderr := endsSoon(t, process, wait, 130); stderr != "" {
		t.Errorf("it complains:\n%s", stderr)
	}
}

// silence is a server that accepts connections and never says a word.
type silence struct {
	address string
	called  chan struct{} // closed at the first connection
}

func listenSilently(t *testing.T) silence {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	s := silence{listener.Addr().String(), make(chan struct{})}
	var once sync.Once
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			once.Do(func() { close(s.called) })
			t.Cleanup(func() { _ = conn.Close() })
		}
	}()
	t.Cleanup(func() { _ = listener.Close() })
	return s
}

// A server that is told to end may take its time. Whoever has no patience tells it again, and it is gone.
func cliIsKilledByASecondInterrupt(t *testing.T, c cli) {
	if signal.Ignored(os.Interrupt) {
		t.Skip("a shell that started this in the background lets its children ignore interrupts")
	}
	c, _ = c.onMigrated(t)
	process, wait := c.started(t, "listen=", "serve", "--listen", "127.0.0.1:0", "--drain", "50s")

	type end struct {
		code   int
		stderr string
	}
	ended := make(chan end, 1)
	go func() {
		code, stderr := wait()
		ended <- end{code, stderr}
	}()
	must(t, process.Signal(os.Interrupt))
	select {
	case e := <-ended:
		t.Fatalf("the first interrupt ended it, with code %d\n%s", e.code, e.stderr)
	case <-time.After(500 * time.Millisecond): // in which it has noticed, most likely
	}
	// If it has not, the next one is the first for it, too.
	for began := time.Now(); time.Since(began) < time.Minute; {
		must(t, process.Signal(os.Interrupt))
		select {
		case e := <-ended:
			if e.code != -1 { // a signal has killed it
				t.Errorf("exit code %d\n%s", e.code, e.stderr)
			}
			return
		case <-time.After(100 * time.Millisecond):
		}
	}
	_ = process.Kill()
	<-ended
	t.Error("it does not heed a second interrupt")
}
