//go:build unix

package prove

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/internal/pgserver"
	"github.com/pglimit/ratelimit/migrations"
)

// server is a throwaway whose processes we may stop and kill.
type server struct {
	*pgserver.Server
	data  string // its data directory
	btree bool   // it has btree_gist
}

const (
	template = "pglimit_prove_template"
	database = "pglimit_prove"
)

func startServer(ctx context.Context, say func(string)) (_ *server, err error) {
	for _, tool := range []string{"pgrep", "kill"} {
		if _, err := exec.LookPath(tool); err != nil {
			return nil, fmt.Errorf("prove signals the server's processes: install %s (the package procps)", tool)
		}
	}
	started, err := pgserver.Start(ctx, pgserver.Options{
		From:     []pgserver.Source{pgserver.Local, pgserver.Embedded}, // a container's processes are not ours to stop
		Settings: map[string]string{"max_connections": "200"}, Notice: say,
	})
	if err != nil {
		return nil, fmt.Errorf("prove stops and kills a throwaway PostgreSQL of this machine: install initdb and postgres (the package postgresql): %w", err)
	}
	s := &server{Server: started}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Stop())
		}
	}()
	err = s.do(ctx, "", func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "create database "+template)
		return errors.Join(err, conn.QueryRow(ctx, "show data_directory").Scan(&s.data))
	})
	if err != nil {
		return s, err
	}
	pool, err := pgxpool.New(ctx, s.URL(template))
	if err != nil {
		return s, err
	}
	err = migrations.Up(ctx, pool)
	pool.Close()
	if s.btree = !errors.Is(err, migrations.ErrBtreeGist); err != nil && s.btree {
		return s, err
	}
	err = s.create(ctx, database)
	return s, err
}

// create a migrated database.
func (s *server) create(ctx context.Context, name string) error {
	return s.do(ctx, "", func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "create database "+name+" template "+template)
		return err
	})
}

// do something on a connection of its own, which no proxy cuts.
func (s *server) do(ctx context.Context, name string, do func(*pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, recoverWithin)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.URL(name))
	for err != nil && ctx.Err() == nil { // it recovers
		pass(ctx, 50*time.Millisecond)
		conn, err = pgx.Connect(ctx, s.URL(name))
	}
	if err != nil {
		return err
	}
	defer conn.Close(ctx) //nolint:errcheck // nothing is left to be said
	return do(conn)
}

// restart the server, also if it was killed: its processes may take a moment to end.
func (s *server) restart(ctx context.Context) error {
	err := s.Restart(ctx)
	for n := 0; err != nil && n < 50 && ctx.Err() == nil; n++ {
		pass(ctx, 200*time.Millisecond)
		_ = s.kill() // it may hang
		err = s.Restart(ctx)
	}
	return err
}

// kill the first process when it is stopped, so that it starts no more, and all others.
func (s *server) kill() error {
	return errors.Join(s.signal(syscall.SIGSTOP, true), s.signal(syscall.SIGKILL, false))
}

// signal the server's processes, or only the one that started the others.
func (s *server) signal(signal syscall.Signal, first bool) error {
	file, err := os.ReadFile(filepath.Join(s.data, "postmaster.pid"))
	if err != nil {
		return err
	}
	pid, _, _ := strings.Cut(string(file), "\n")
	all := []string{pid}
	if !first {
		children, err := exec.Command("pgrep", "-P", pid).Output()
		if err != nil {
			return fmt.Errorf("pgrep: %w", err)
		}
		all = append(all, strings.Fields(string(children))...)
	}
	_ = s.command("kill", append([]string{"-" + strconv.Itoa(int(signal))}, all...)...).Run() // some may have ended meanwhile
	return nil
}

// command runs as the server's user: root may not do all in a container.
func (s *server) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Dir = "/" // ours may be closed to it
	if info, err := os.Stat(s.data); err == nil && os.Geteuid() == 0 {
		owner := info.Sys().(*syscall.Stat_t)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: owner.Uid, Gid: owner.Gid}}
	}
	return cmd
}

// backends are the processes that serve the workers.
func (s *server) backends(ctx context.Context) (pids []string, err error) {
	err = s.do(ctx, database, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "select coalesce(array_agg(pid::text), '{}') from pg_stat_activity where application_name = $1", application).Scan(&pids)
	})
	return pids, err
}
