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
	return s, s.create(ctx, database)
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

// processes of the server; the first one started the others.
func (s *server) processes() ([]int, error) {
	file, err := os.ReadFile(filepath.Join(s.data, "postmaster.pid"))
	if err != nil {
		return nil, err
	}
	line, _, _ := strings.Cut(string(file), "\n")
	first, err := strconv.Atoi(line)
	if err != nil {
		return nil, err
	}
	table, err := exec.Command("ps", "-A", "-o", "pid=", "-o", "ppid=").Output()
	all := []int{first}
	for line := range strings.Lines(string(table)) {
		var pid, parent int
		if _, err := fmt.Sscan(line, &pid, &parent); err == nil && parent == first {
			all = append(all, pid)
		}
	}
	return all, err
}

// signal the server's processes, or only the first.
func (s *server) signal(signal syscall.Signal, first bool) error {
	all, err := s.processes()
	if err != nil {
		return err
	}
	if first {
		all = all[:1]
	}
	for _, pid := range all {
		_ = syscall.Kill(pid, signal) // it may have ended meanwhile
	}
	return nil
}

// backends are the processes that serve the workers.
func (s *server) backends(ctx context.Context) (pids []int, err error) {
	err = s.do(ctx, database, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "select coalesce(array_agg(pid), '{}') from pg_stat_activity where application_name = $1", application).Scan(&pids)
	})
	return pids, err
}
