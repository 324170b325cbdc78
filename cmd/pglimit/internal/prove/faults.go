//go:build unix

package prove

import (
	"context"
	"os/exec"
	"strconv"
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
	{"server killed", "kill -9 of all its processes", func(ctx context.Context, p *prover) error {
		if err := p.server.signal(syscall.SIGKILL, false); err != nil {
			return err
		}
		return p.server.Restart(ctx)
	}},
	{"server crashed", "immediate shutdown", func(ctx context.Context, p *prover) error {
		if err := p.server.signal(syscall.SIGQUIT, true); err != nil {
			return err
		}
		return p.server.Restart(ctx)
	}},
	{"server restarted", "fast shutdown", func(ctx context.Context, p *prover) error { return p.server.Restart(ctx) }},
	{"server stopped", "SIGSTOP, SIGCONT of all", func(ctx context.Context, p *prover) error {
		if err := p.server.signal(syscall.SIGSTOP, false); err != nil {
			return err
		}
		pass(ctx, 3*p.short())
		return p.server.signal(syscall.SIGCONT, false)
	}},
	{"backend killed", "kill -9: all recover", func(ctx context.Context, p *prover) error {
		pids, err := p.server.backends(ctx)
		if err == nil && len(pids) > 0 {
			err = syscall.Kill(pids[p.random.IntN(len(pids))], syscall.SIGKILL)
		}
		return err
	}},
	{"disk full", "no room for WAL: PANIC", func(ctx context.Context, p *prover) error {
		pids, err := p.server.backends(ctx)
		limit := func(size string) { // beyond which no file may be written, which Postgres takes for a full disk
			for _, pid := range pids {
				_ = exec.CommandContext(ctx, "prlimit", "--fsize="+size+":", "--pid", strconv.Itoa(pid)).Run()
			}
		}
		limit("4096")
		pass(ctx, p.short())
		limit("unlimited")
		return err
	}},
	{"cut before", "the question is lost", cuts(cutBefore)},
	{"cut during", "while Postgres decides", cuts(cutDuring)},
	{"cut after", "committed, not heard of", cuts(cutAfter)},
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
	{"clock stepped", "libfaketime", nil},
}

// skipped says why the fault cannot be injected here.
func (f *fault) skipped() string {
	if _, err := exec.LookPath("prlimit"); err != nil && f.name == "disk full" {
		return "there is no prlimit (of util-linux)"
	} else if f.inject == nil {
		return "there is no libfaketime"
	}
	return ""
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
