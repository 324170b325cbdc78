//go:build unix

package prove

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"sync/atomic"
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

const database = "pglimit_prove"

func startServer(ctx context.Context, say func(string)) (*server, error) {
	if _, err := exec.LookPath("pgrep"); err != nil {
		return nil, errors.New("prove signals the server's processes: install pgrep (the package procps)")
	}
	started, err := pgserver.Start(ctx, pgserver.Options{
		From:     []pgserver.Source{pgserver.Local, pgserver.Embedded}, // a container's processes are not ours to stop
		Settings: map[string]string{"max_connections": "200"}, Notice: say,
	})
	if err != nil {
		return nil, fmt.Errorf("prove stops and kills a throwaway PostgreSQL of this machine: install initdb and postgres (the package postgresql): %w", err)
	}
	return &server{Server: started}, nil
}

func (s *server) migrate(ctx context.Context) error {
	err := s.do(ctx, "", func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "create database "+database)
		return errors.Join(err, conn.QueryRow(ctx, "show data_directory").Scan(&s.data))
	})
	if err != nil {
		return err
	}
	pool, err := pgxpool.New(ctx, s.URL(database))
	if err != nil {
		return err
	}
	defer pool.Close()
	err = migrations.Up(ctx, pool)
	if s.btree = !errors.Is(err, migrations.ErrBtreeGist); s.btree {
		return err
	}
	return nil
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
	return s.sh("kill -STOP $server; kill -KILL $server $(pgrep -P $server); :") // some may have ended meanwhile
}

// sh runs a script as the server's user: root may not do all in a container. $server is the process that started the
// others.
func (s *server) sh(script string, args ...string) error {
	cmd := exec.Command("sh", append([]string{"-c", "read server <postmaster.pid && " + script, "sh"}, args...)...)
	cmd.Dir = s.data
	if info, err := os.Stat(s.data); err == nil && os.Geteuid() == 0 {
		owner := info.Sys().(*syscall.Stat_t)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: owner.Uid, Gid: owner.Gid}}
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", script, err, out)
	}
	return nil
}

// backends runs a command for each $pid that serves the workers, until it exits, or for all if one then is $done: some
// may have ended.
func (s *server) backends(ctx context.Context, command string) error {
	return s.do(ctx, database, func(conn *pgx.Conn) error {
		var pids []string
		const read = "select coalesce(array_agg(pid::text), '{}') from pg_stat_activity where application_name = $1"
		if err := conn.QueryRow(ctx, read, application).Scan(&pids); err != nil {
			return err
		}
		return s.sh("for pid; do "+command+"; done; test $done", pids...)
	})
}

// When a connection is cut: before the server gets a question, when it has just got it, or when it has answered.
const (
	passes int32 = iota
	cutBefore
	cutDuring
	cutAfter
	silent // nothing passes
)

// proxy stands between the workers and the server.
type proxy struct {
	net.Listener
	server string
	mode   atomic.Int32
}

func newProxy(server string) (*proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{Listener: listener, server: server}
	go func() {
		for client, err := p.Accept(); err == nil; client, err = p.Accept() {
			go p.serve(client)
		}
	}()
	return p, nil
}

func (p *proxy) serve(client net.Conn) {
	defer client.Close() //nolint:errcheck // as the server's: it may be closed already
	server, err := net.Dial("tcp", p.server)
	if err != nil {
		return
	}
	defer server.Close()  //nolint:errcheck // see above
	var loses atomic.Bool // the next answer
	go func() {
		p.copy(client, server, func() bool { return !loses.Load() })
		_ = client.Close()
	}()
	p.copy(server, client, func() bool {
		mode := p.mode.Load()
		if mode == passes || mode == silent || rand.Float64() > 0.3 { //nolint:gosec // no secret
			return true
		}
		if mode == cutDuring {
			time.AfterFunc(time.Duration(rand.IntN(2000))*time.Microsecond, func() { _ = client.Close() }) //nolint:gosec // no secret
		}
		loses.Store(mode == cutAfter)
		return mode != cutBefore
	})
}

// copy passes on what may pass, until something may not.
func (p *proxy) copy(to io.Writer, from io.Reader, may func() bool) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		for p.mode.Load() == silent {
			pass(context.Background(), time.Millisecond)
		}
		if n == 0 || !may() {
			return
		}
		if _, failed := to.Write(buffer[:n]); err != nil || failed != nil {
			return
		}
	}
}
