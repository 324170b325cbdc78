//go:build unix

package prove

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// fault is something that happens to the processes, the connections or the server.
type fault struct {
	name, does string
	inject     func(ctx context.Context, p *prover) error
}

var faults = []fault{
	{"process killed", "kill -9 of a process", func(ctx context.Context, p *prover) error {
		return p.replace(ctx, p.random.IntN(len(p.children)))
	}},
	{"process stopped", "SIGSTOP, SIGCONT", func(ctx context.Context, p *prover) error {
		process := p.children[p.random.IntN(len(p.children))].cmd.Process
		_ = process.Signal(syscall.SIGSTOP)
		pass(ctx, 2*p.short())
		return process.Signal(syscall.SIGCONT)
	}},
	{"server killed", "kill -9 of all", func(ctx context.Context, p *prover) error {
		if err := p.server.kill(); err != nil {
			return err
		}
		return p.server.restart(ctx)
	}},
	{"server crashed", "immediate shutdown", func(ctx context.Context, p *prover) error {
		if err := p.server.signal(syscall.SIGQUIT, true); err != nil {
			return err
		}
		return p.server.restart(ctx)
	}},
	{"server restarted", "fast shutdown", func(ctx context.Context, p *prover) error { return p.server.restart(ctx) }},
	{"server stopped", "SIGSTOP, SIGCONT", func(ctx context.Context, p *prover) error {
		if err := p.server.signal(syscall.SIGSTOP, false); err != nil {
			return err
		}
		pass(ctx, 3*p.short())
		return p.server.signal(syscall.SIGCONT, false)
	}},
	{"backend killed", "kill -9, all recover", func(ctx context.Context, p *prover) error {
		var err error
		for range 100 { // one may have ended by itself
			var pids []string
			if pids, err = p.server.backends(ctx); err == nil && len(pids) > 0 {
				if err = p.server.command("kill", "-9", pids[p.random.IntN(len(pids))]).Run(); err == nil {
					return nil
				}
			}
			pass(ctx, 10*time.Millisecond)
		}
		return cmp.Or(err, ctx.Err())
	}},
	{"disk full", "no room: PANIC", func(ctx context.Context, p *prover) error {
		pids, err := p.server.backends(ctx)
		if err != nil {
			return err
		}
		limit := func(size string) error { // no file may be larger, which Postgres takes for a full disk
			const each = `for pid; do prlimit --fsize=$0: --pid $pid && done=1; done; test $done` // some may have ended
			return p.server.command("sh", append([]string{"-c", each, size}, pids...)...).Run()
		}
		if err := limit("4096"); err != nil {
			return fmt.Errorf("prlimit: %w", err)
		}
		pass(ctx, p.short())
		_ = limit("unlimited") // none is left where there was no room
		return nil
	}},
	{"cut before", "the question is lost", cuts(cutBefore)},
	{"cut during", "as Postgres decides", cuts(cutDuring)},
	{"cut after", "the answer is lost", cuts(cutAfter)},
	{"network silent", "nothing passes", func(ctx context.Context, p *prover) error {
		p.proxy.silence.Lock()
		defer p.proxy.silence.Unlock()
		pass(ctx, 2*p.short())
		return nil
	}},
	{"pool empty", "connections are held", func(ctx context.Context, p *prover) error {
		length := 2 * p.short()
		p.children[p.random.IntN(len(p.children))].tell("hold", int64(length))
		pass(ctx, length)
		return nil
	}},
	{"table locked", "ACCESS EXCLUSIVE", locks("lock table pglimit.token_bucket in access exclusive mode")},
	{"rows locked", "FOR UPDATE", locks("select from pglimit.token_bucket order by key, limiter for update")},
	{"calls cancelled", "pg_cancel_backend", repeats("pg_cancel_backend")},
	{"sessions ended", "pg_terminate_backend", repeats("pg_terminate_backend")},
	{clockStepped, "+40 s, and back", stepClock},
}

const clockStepped = "clock stepped"

// skipped says why the fault cannot be injected here.
func (f *fault) skipped() string {
	if _, err := exec.LookPath("prlimit"); err != nil && f.name == "disk full" {
		return "there is no prlimit (of util-linux)"
	} else if f.name == clockStepped && libfaketime() == "" {
		return "there is no libfaketime"
	}
	return ""
}

func libfaketime() string {
	found, _ := filepath.Glob("/usr/lib*/faketime/libfaketimeMT.so.1")
	more, _ := filepath.Glob("/usr/lib/*/faketime/libfaketimeMT.so.1")
	if found = append(found, more...); len(found) == 0 {
		return ""
	}
	return found[0]
}

// stepClock restarts the server with a clock that can be stepped, steps it, and restarts it with its own.
func stepClock(ctx context.Context, p *prover) error {
	file := filepath.Join(p.server.data, "faketime") // which the server's user can reach
	set := func(offset string) error {
		err := os.WriteFile(file+".new", []byte(offset+"\n"), 0o600)
		return errors.Join(err, os.Chmod(file+".new", 0o644), os.Rename(file+".new", file)) //nolint:gosec // another user reads it
	}
	environment := map[string]string{
		"LD_PRELOAD": libfaketime(), "FAKETIME_TIMESTAMP_FILE": file, "FAKETIME_NO_CACHE": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1",
	}
	err := set("+0s")
	for name, value := range environment {
		err = errors.Join(err, os.Setenv(name, value))
	}
	err = errors.Join(err, p.server.restart(ctx))
	for name := range environment {
		err = errors.Join(err, os.Unsetenv(name))
	}
	for _, offset := range []string{"+40s", "+0s"} {
		pass(ctx, 2*p.short())
		err = errors.Join(err, set(offset))
	}
	pass(ctx, p.short())
	return errors.Join(err, p.server.kill(), p.server.restart(ctx)) // libfaketime may hang in a signal handler: no orderly end
}

func cuts(mode int32) func(ctx context.Context, p *prover) error {
	return func(ctx context.Context, p *prover) error {
		p.proxy.mode.Store(mode)
		defer p.proxy.mode.Store(passes)
		pass(ctx, p.short())
		return nil
	}
}

// locks holds a lock for a while.
func locks(lock string) func(ctx context.Context, p *prover) error {
	return func(ctx context.Context, p *prover) error {
		return p.server.do(ctx, database, func(conn *pgx.Conn) error {
			return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, lock)
				pass(ctx, 2*p.short())
				return err
			})
		})
	}
}

// repeats calls the function for each session that is at work, again and again.
func repeats(function string) func(ctx context.Context, p *prover) error {
	return func(ctx context.Context, p *prover) error {
		return p.server.do(ctx, database, func(conn *pgx.Conn) (err error) {
			for end := time.Now().Add(p.short()); time.Now().Before(end) && err == nil; pass(ctx, 30*time.Millisecond) {
				_, err = conn.Exec(ctx, "select "+function+"(pid) from pg_stat_activity where application_name = $1 and state <> 'idle'", application)
			}
			return err
		})
	}
}
