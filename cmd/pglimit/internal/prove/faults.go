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
	skip       func() string // why it cannot be done here
	inject     func(ctx context.Context, p *prover) error
}

var faults = []fault{
	{"process killed", "kill -9 of a process", nil, func(ctx context.Context, p *prover) error {
		return p.replace(ctx, p.random.IntN(len(p.children)))
	}},
	{"process stopped", "SIGSTOP, SIGCONT", nil, func(ctx context.Context, p *prover) error {
		process := p.children[p.random.IntN(len(p.children))].cmd.Process
		_ = process.Signal(syscall.SIGSTOP)
		p.pass(ctx, 2*p.short())
		return process.Signal(syscall.SIGCONT)
	}},
	{"server killed", "kill -9 of all its processes", nil, func(ctx context.Context, p *prover) error {
		if err := p.server.signal(syscall.SIGKILL); err != nil {
			return err
		}
		return p.server.Restart(ctx)
	}},
	{"server crashed", "immediate shutdown", nil, func(ctx context.Context, p *prover) error {
		all, err := p.server.processes()
		if err != nil {
			return err
		}
		if err := syscall.Kill(all[0], syscall.SIGQUIT); err != nil {
			return err
		}
		return p.server.Restart(ctx)
	}},
	{"server restarted", "fast shutdown", nil, func(ctx context.Context, p *prover) error { return p.server.Restart(ctx) }},
	{"server stopped", "SIGSTOP, SIGCONT of all", nil, func(ctx context.Context, p *prover) error {
		if err := p.server.signal(syscall.SIGSTOP); err != nil {
			return err
		}
		p.pass(ctx, 3*p.short())
		return p.server.signal(syscall.SIGCONT)
	}},
	{"backend killed", "kill -9: the server recovers", nil, func(ctx context.Context, p *prover) error {
		pids, err := p.server.backends(ctx)
		if err == nil && len(pids) > 0 {
			err = syscall.Kill(pids[p.random.IntN(len(pids))], syscall.SIGKILL)
		}
		return err
	}},
	{"disk full", "no room for the WAL: PANIC", func() string {
		if _, err := exec.LookPath("prlimit"); err != nil {
			return "prlimit of util-linux is not installed"
		}
		return ""
	}, func(ctx context.Context, p *prover) error {
		pids, err := p.server.backends(ctx)
		if err != nil {
			return err
		}
		for _, pid := range pids { // a file may not grow beyond that, which Postgres meets like a full disk
			_ = exec.CommandContext(ctx, "prlimit", "--fsize=4096:", "--pid", strconv.Itoa(pid)).Run()
		}
		p.pass(ctx, p.short())
		for _, pid := range pids {
			_ = exec.CommandContext(ctx, "prlimit", "--fsize=unlimited:", "--pid", strconv.Itoa(pid)).Run()
		}
		return nil
	}},
	{"cut before", "the question is lost", nil, cuts(cutBefore)},
	{"cut during", "while Postgres decides", nil, cuts(cutDuring)},
	{"cut after", "committed, the answer is lost", nil, cuts(cutAfter)},
	{"network silent", "nothing passes", nil, func(ctx context.Context, p *prover) error {
		p.proxy.silence.Lock()
		defer p.proxy.silence.Unlock()
		p.pass(ctx, 2*p.short())
		return nil
	}},
	{"pool empty", "its connections are held", nil, func(ctx context.Context, p *prover) error {
		length := 2 * p.short()
		p.children[p.random.IntN(len(p.children))].tell("hold", int64(length))
		p.pass(ctx, length)
		return nil
	}},
	{"table locked", "ACCESS EXCLUSIVE", nil, sql(func(ctx context.Context, p *prover, conn *pgx.Conn) error {
		return holding(ctx, p, conn, "lock table pglimit.token_bucket in access exclusive mode")
	})},
	{"rows locked", "FOR UPDATE", nil, sql(func(ctx context.Context, p *prover, conn *pgx.Conn) error {
		return holding(ctx, p, conn, "select from pglimit.token_bucket where key like '"+strconv.Itoa(len(p.rounds)-1)+":%' order by key, limiter for update")
	})},
	{"calls cancelled", "pg_cancel_backend", nil, sql(repeated("pg_cancel_backend"))},
	{"sessions ended", "pg_terminate_backend", nil, sql(repeated("pg_terminate_backend"))},
	{"clock stepped", "libfaketime", func() string { return "libfaketime cannot step the clock of a server that runs as another user yet" }, nil},
}

func cuts(mode int32) func(ctx context.Context, p *prover) error {
	return func(ctx context.Context, p *prover) error {
		p.proxy.mode.Store(mode)
		defer p.proxy.mode.Store(passes)
		p.pass(ctx, p.short())
		return nil
	}
}

func sql(do func(ctx context.Context, p *prover, conn *pgx.Conn) error) func(ctx context.Context, p *prover) error {
	return func(ctx context.Context, p *prover) error {
		return p.server.do(ctx, database, func(conn *pgx.Conn) error { return do(ctx, p, conn) })
	}
}

// holding a lock for a while.
func holding(ctx context.Context, p *prover, conn *pgx.Conn, lock string) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lock); err != nil {
			return err
		}
		p.pass(ctx, 2*p.short())
		return nil
	})
}

func repeated(function string) func(ctx context.Context, p *prover, conn *pgx.Conn) error {
	return func(ctx context.Context, p *prover, conn *pgx.Conn) error {
		for end := time.Now().Add(p.short()); time.Now().Before(end) && ctx.Err() == nil; p.pass(ctx, 30*time.Millisecond) {
			_, err := conn.Exec(ctx, "select "+function+"(pid) from pg_stat_activity where application_name = $1 and state <> 'idle'", application)
			if err != nil {
				return err
			}
		}
		return nil
	}
}
