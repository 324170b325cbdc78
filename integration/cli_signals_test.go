package integration

import (
	"context"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Who runs it under systemd or in a container ends it with SIGTERM: it ends as after Ctrl-C,
// and says no more than that.
func cliEndsOnSIGTERM(t *testing.T, c cli) {
	locked, pool := c.locked(t)
	process, wait := locked.started(t, "", "allow", "k", "--limit", "2/1h", "--timeout", "0")
	waitsForLock(t, pool)
	if stderr := endsSoonBy(t, process, wait, syscall.SIGTERM, 143); stderr != "" {
		t.Errorf("it complains:\n%s", stderr)
	}

	c, _ = c.onMigrated(t)
	process, wait = c.started(t, "cleanup started", "cleanup", "--interval", "100ms")
	stderr := endsSoonBy(t, process, wait, syscall.SIGTERM, 0)
	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	if last := lines[len(lines)-1]; !strings.Contains(last, "pglimit cleanup stopped") {
		t.Errorf("the last that it says is %q", last)
	}
	for _, line := range lines {
		if !strings.Contains(line, "level=INFO") {
			t.Errorf("it complains: %s", line)
		}
	}
}

// The batch that is under way may take its time when cleanup is told to end. Who has no
// patience tells it again, and it is gone.
func cliIsKilledByASecondInterrupt(t *testing.T, c cli) {
	if signal.Ignored(os.Interrupt) {
		t.Skip("a shell that started this in the background lets its children ignore interrupts")
	}
	c, pool := c.onMigrated(t)
	holder, err := pool.Begin(t.Context())
	must(t, err)
	defer func() { _ = holder.Rollback(context.Background()) }()
	_, err = holder.Exec(t.Context(), `lock table pglimit.token_bucket in access exclusive mode`)
	must(t, err)
	process, wait := c.started(t, "cleanup started", "cleanup", "--interval", "100ms", "--timeout", "50s", "--grace", "50s")
	waitsForLock(t, pool)

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
			if e.code != -1 || strings.Contains(e.stderr, "stopped") { // a signal has killed it
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
