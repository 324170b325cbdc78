//go:build unix

package prove

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
)

// fault is something that happens to the processes, the connections or the server.
type fault struct {
	name, does string
	inject     func(ctx context.Context, p *prover) error
}

var faults = []fault{
	{"process killed", "kill -9 of a process", func(ctx context.Context, p *prover) error {
		i := p.random.IntN(processes)
		old := p.children[i]
		_ = old.cmd.Process.Kill()
		_ = old.cmd.Wait()
		started, err := p.start(ctx, old.id+processes)
		if err == nil {
			p.children[i] = started
		}
		return err
	}},
	{"process stopped", "SIGSTOP, SIGCONT", func(ctx context.Context, p *prover) error {
		process := p.children[p.random.IntN(processes)].cmd.Process
		_ = process.Signal(syscall.SIGSTOP)
		pass(ctx, 2*p.short())
		return process.Signal(syscall.SIGCONT)
	}},
	{"server killed", "kill -9 of all", func(ctx context.Context, p *prover) error {
		return errors.Join(p.server.kill(), p.server.restart(ctx))
	}},
	{"server crashed", "immediate shutdown", func(ctx context.Context, p *prover) error {
		return errors.Join(p.server.sh("kill -QUIT $server"), p.server.restart(ctx))
	}},
	{"server restarted", "fast shutdown", func(ctx context.Context, p *prover) error { return p.server.restart(ctx) }},
	{"server stopped", "SIGSTOP, SIGCONT", func(ctx context.Context, p *prover) error {
		err := p.server.sh("kill -STOP $server $(pgrep -P $server); :") // some may have ended meanwhile
		pass(ctx, 3*p.short())
		return errors.Join(err, p.server.sh("kill -CONT $server $(pgrep -P $server); :"))
	}},
	{"backend killed", "kill -9, all recover", func(ctx context.Context, p *prover) error {
		return p.server.backends(ctx, "kill -9 $pid && exit")
	}},
	{"disk full", "no room: PANIC", func(ctx context.Context, p *prover) error { // no file may be larger, which is the same to Postgres
		if err := p.server.backends(ctx, "prlimit --fsize=4096: --pid $pid && done=yes"); err != nil {
			return err
		}
		pass(ctx, p.short())
		_ = p.server.backends(ctx, "prlimit --fsize=unlimited: --pid $pid && done=yes") // none is left where there was no room
		return nil
	}},
	{"cut before", "the question is lost", wires(cutBefore)},
	{"cut during", "as Postgres decides", wires(cutDuring)},
	{"cut after", "the answer is lost", wires(cutAfter)},
	{"network silent", "nothing passes", wires(silent)},
	{"pool empty", "connections are held", func(ctx context.Context, p *prover) error {
		length := 2 * p.short()
		_, _ = fmt.Fprintln(p.children[p.random.IntN(processes)].stdin, "hold", int64(length))
		pass(ctx, length)
		return nil
	}},
	{"table locked", "ACCESS EXCLUSIVE", runs("begin; lock table pglimit.token_bucket in access exclusive mode; select pg_sleep(%v); commit")},
	{"rows locked", "FOR UPDATE", runs("begin; select from pglimit.token_bucket order by key, limiter for update; select pg_sleep(%v); commit")},
	{"calls cancelled", "pg_cancel_backend", runs(strings.ReplaceAll(endEach, "end_it", "pg_cancel_backend"))},
	{"sessions ended", "pg_terminate_backend", runs(strings.ReplaceAll(endEach, "end_it", "pg_terminate_backend"))},
	{clockStepped, "+40 s, and back", stepClock},
}

const clockStepped = "clock stepped"

// skipped says why the fault cannot be injected here.
func (f *fault) skipped() string {
	if _, err := exec.LookPath("prlimit"); err != nil && f.name == "disk full" {
		return "skipped: no prlimit" // of util-linux
	} else if f.name == clockStepped && libfaketime() == "" {
		return "skipped: no libfaketime"
	}
	return ""
}

func libfaketime() string {
	found, _ := filepath.Glob("/usr/lib*/faketime/libfaketimeMT.so.1")
	more, _ := filepath.Glob("/usr/lib/*/faketime/libfaketimeMT.so.1")
	return append(append(found, more...), "")[0]
}

// stepClock restarts the server with a clock that can be stepped, steps it, and restarts it with its own.
func stepClock(ctx context.Context, p *prover) error {
	set := func(offset string) error {
		return p.server.sh("echo " + offset + " >faketime.new && mv faketime.new faketime")
	}
	environment := map[string]string{
		"LD_PRELOAD": libfaketime(), "FAKETIME_TIMESTAMP_FILE": filepath.Join(p.server.data, "faketime"), "FAKETIME_NO_CACHE": "1",
		"FAKETIME_DONT_FAKE_MONOTONIC": "1",
	}
	err := set("+0s")
	for name, value := range environment {
		err = errors.Join(err, os.Setenv(name, value))
	}
	err = errors.Join(err, p.server.restart(ctx), os.Unsetenv("LD_PRELOAD"))
	for _, offset := range []string{"+40s", "+0s"} {
		pass(ctx, 2*p.short())
		err = errors.Join(err, set(offset))
	}
	pass(ctx, p.short())
	return errors.Join(err, p.server.kill(), p.server.restart(ctx)) // libfaketime may hang in a signal handler: no orderly end
}

func wires(mode int32) func(ctx context.Context, p *prover) error {
	return func(ctx context.Context, p *prover) error {
		p.proxy.mode.Store(mode)
		defer p.proxy.mode.Store(passes)
		pass(ctx, p.short())
		return nil
	}
}

// endEach ends what each session does that is at work, again and again.
const endEach = `do $$ begin
	for _ in 1..15 * %v loop
		perform end_it(pid) from pg_stat_activity where application_name = '` + application + `' and state <> 'idle';
		perform pg_sleep(0.03), pg_stat_clear_snapshot();
	end loop;
end $$`

// runs a statement that takes so many seconds.
func runs(statement string) func(ctx context.Context, p *prover) error {
	return func(ctx context.Context, p *prover) error {
		return p.server.do(ctx, database, func(conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, fmt.Sprintf(statement, 2*p.short().Seconds()))
			return err
		})
	}
}
