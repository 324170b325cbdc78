package integration

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/semaphore"
)

func cliRunsACommand(t *testing.T, c cli) {
	c, pool := c.onMigrated(t)
	ran := c.run(t, "run", "--key", "k", "--", "sh", "-c", "echo \"$PGLIMIT_TOKEN\"; echo oops >&2; exit 7").exits(t, 7)
	if len(strings.TrimSpace(ran.stdout)) < 19 || ran.stderr != "oops\n" {
		t.Errorf("%q, %q", ran.stdout, ran.stderr)
	}
	c.run(t, "run", "--key", "k", "true").exits(t, 0)
	c.run(t, "run", "--key", "k", "--", "sh", "-c", "kill -9 $$").exits(t, 137)
	if r := c.run(t, "run", "--key", "k", "no-such-command").exits(t, 127); !strings.Contains(r.stderr, "no-such-command") {
		t.Error(r.stderr)
	}
	if held := texts(t, pool, "select holder from pglimit.holders"); len(held) > 0 {
		t.Errorf("still held by %v", held)
	}
	c.run(t, "run", "--key", "k").fails(t, "needs a COMMAND")
	c.run(t, "run", "true").fails(t, "needs a --key")
	c.run(t, "run", "--key", "k", "--concurrency", "0", "true").fails(t, "at least 1")

	s := newSemaphore(t, pool, semaphore.Config{Places: 2}) // its name is test
	p, q := acquire(t, s, "busy"), acquire(t, s, "busy")
	var listed struct {
		Holders []struct{ Holder, Token string }
	}
	must(t, json.Unmarshal([]byte(c.run(t, "holders", "busy", "--limiter", "test", "--output", "json").exits(t, 0).stdout), &listed))
	if h := listed.Holders; len(h) != 2 || h[0].Token != strconv.FormatInt(p.Token, 10) || h[1].Token != strconv.FormatInt(q.Token, 10) || h[0].Holder == h[1].Holder {
		t.Errorf("held by %+v", h)
	}
	c.run(t, "holders", "busy", "--limiter", "test").exits(t, 0).prints(t, listed.Holders[1].Holder+"  1 ")
	other := query[string](t, pool, "select token::text from pglimit.acquire('jobs', 'b', 1)")
	all := c.run(t, "holders").exits(t, 0)
	all.prints(t, "LIMITER  KEY   HOLDER", "jobs     b     "+other, "test     busy  "+listed.Holders[0].Holder, listed.Holders[1].Holder)
	if one := c.run(t, "holders", "--limiter", "jobs", "--output", "json").exits(t, 0); !strings.Contains(one.stdout, other) || strings.Contains(one.stdout, "busy") {
		t.Error(one.stdout)
	}
	c.run(t, "holders", "busy").exits(t, 0).prints(t, "nobody holds a place\n")
	c.run(t, "holders", "busy", "--timeout", "-1s").fails(t, "must not be negative")
	c.run(t, "holders", "busy", "--limiter", "").fails(t, "--limiter")
	busy := []string{"run", "--limiter", "test", "--key", "busy", "--concurrency", "2"}
	if r := c.run(t, append(busy, "echo", "it ran")...).exits(t, 75); !strings.Contains(r.stderr, "--wait") || r.stdout != "" {
		t.Errorf("%q, %q", r.stdout, r.stderr)
	}
	c.run(t, append(busy, "--wait", "100ms", "echo", "it ran")...).exits(t, 75)
	must(t, p.Release(t.Context()))
	c.run(t, append(busy, "--wait", "1m", "echo", "it ran")...).exits(t, 0).prints(t, "it ran\n")
	must(t, q.Release(t.Context()))
}

// A signal is the command's business, and of what it has started.
func cliPassesSignalsOn(t *testing.T, c cli) {
	c, pool := c.onMigrated(t)
	// Killed twice: what the shell has forked, and is not the other program yet, loses a signal.
	const script = `trap 'kill $!; sleep 1; kill $! 2>/dev/null; echo ended >&2; exit 5' TERM; sleep 60 & echo started >&2; wait`
	process, wait := c.started(t, "started", "run", "--key", "k", "--", "sh", "-c", script)
	if stderr := endsSoonBy(t, process, wait, syscall.SIGTERM, 5); !strings.Contains(stderr, "ended") {
		t.Errorf("the command got no signal:\n%s", stderr)
	}
	if held := texts(t, pool, "select holder from pglimit.holders"); len(held) > 0 {
		t.Errorf("still held by %v", held)
	}
}

// A command that has lost its place is ended, also if it does not listen.
func cliEndsACommandWithoutAPlace(t *testing.T, c cli) {
	c, pool := c.onMigrated(t)
	for name, script := range map[string]string{
		"listens":        `echo started >&2; sleep 60`,
		"does not":       `trap '' TERM; echo started >&2; sleep 60; sleep 60`,
		"has a session":  `trap '' TERM; setsid sleep 90 & echo started >&2; wait`,
		"ends by itself": `trap 'exit 0' TERM; echo started >&2; sleep 60 & wait`,
	} {
		// A TTL in which a busy machine renews the permit, until it is taken away.
		_, wait := c.started(t, "started", "run", "--key", name, "--ttl", "6s", "--grace", "100ms", "--", "sh", "-c", script)
		execute(t, pool, "update pglimit.permits set holders = '{}', tokens = '{}', weights = '{}', since_ns = '{}', until_ns = '{}', held = 0")
		began := time.Now()
		if code, stderr := wait(); code != 76 || !strings.Contains(stderr, "the permit is lost") {
			t.Errorf("%s: exit code %d after %v: %s", name, code, time.Since(began), stderr)
		}
	}
}

// leavesBehind is a script that starts a worker in a session of its own, which has closed its descriptors and runs
// until end.
func leavesBehind(t *testing.T) (script, pid string, end func()) {
	t.Helper()
	if _, err := os.Stat("/proc/self"); err != nil {
		t.Skip("only on Linux")
	}
	folder := t.TempDir()
	fifo, pid := folder+"/fifo", folder+"/pid"
	must(t, syscall.Mkfifo(fifo, 0o600))
	script = `setsid sh -c 'trap "" TERM; exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-; echo $$ >` + pid + `; echo started >&2; read x <` + fifo + `' & `
	return script, pid, func() { must(t, os.WriteFile(fifo, []byte("x\n"), 0o600)) }
}

// The place is held for what the command leaves behind, too, and signals are passed on.
func cliHoldsAPlaceUntilAllHasEnded(t *testing.T, c cli) {
	c, pool := c.onMigrated(t)
	script, _, end := leavesBehind(t)
	process, wait := c.started(t, "started", "run", "--key", "k", "--", "sh", "-c", `trap 'echo ends >&2; exit 6' USR1; `+script+`while :; do wait; done`)
	must(t, process.Signal(syscall.SIGUSR1))
	c.run(t, "run", "--key", "k", "true").exits(t, 75)
	end()
	if code, stderr := wait(); code != 6 {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	if held := texts(t, pool, "select holder from pglimit.holders"); len(held) > 0 {
		t.Errorf("still held by %v", held)
	}
}

// If run is killed, the keeper renews the place until all has ended; if the keeper is killed, so is all that it keeps.
func cliKeepsAPlace(t *testing.T, c cli) {
	c, pool := c.onMigrated(t)
	script, _, end := leavesBehind(t)
	process, wait := c.started(t, "started", "run", "--key", "k", "--ttl", "6s", "--", "sh", "-c", script)
	must(t, process.Kill())
	first := query[int64](t, pool, "select until_ns[1] from pglimit.permits")
	until(t, "it happens", func() bool {
		return query[int64](t, pool, "select coalesce(until_ns[1], 0) from pglimit.permits") != first
	})
	c.run(t, "run", "--key", "k", "true").exits(t, 75)
	end()
	_, _ = wait()
	until(t, "it happens", func() bool { return query[int64](t, pool, "select held from pglimit.permits") == 0 })

	script, file, _ := leavesBehind(t)
	process, wait = c.started(t, "started", "run", "--key", "another", "--", "sh", "-c", script+"wait")
	threads, err := filepath.Glob("/proc/" + strconv.Itoa(process.Pid) + "/task/*/children")
	must(t, err)
	keeper := ""
	for _, thread := range threads {
		children, _ := os.ReadFile(thread)
		keeper += strings.TrimSpace(string(children))
	}
	pid, err := strconv.Atoi(keeper)
	must(t, err)
	must(t, syscall.Kill(pid, syscall.SIGKILL))
	if code, stderr := wait(); code != 76 || !strings.Contains(stderr, "keeper") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	worker, err := os.ReadFile(file)
	must(t, err)
	if _, err := os.Stat("/proc/" + strings.TrimSpace(string(worker))); err == nil {
		t.Error("the worker has outlived the keeper")
	}
}
