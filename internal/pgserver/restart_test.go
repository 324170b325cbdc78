//go:build unix

package pgserver

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// restarts tests a server with a pool that is busy meanwhile.
func restarts(t *testing.T, s *Server) {
	t.Helper()
	address, described := s.URL(""), s.Describe()
	pool, err := pgxpool.New(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if _, err := pool.Exec(t.Context(), "create table n (n bigint primary key)"); err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	var working sync.WaitGroup
	var committed, failed int64
	again := make(chan struct{}) // closed once a query succeeds after one that failed
	working.Go(func() {
		for n := int64(0); ctx.Err() == nil; n++ {
			if _, err := pool.Exec(context.WithoutCancel(ctx), "insert into n values ($1)", n); err == nil {
				if committed++; failed > 0 {
					select {
					case <-again:
					default:
						close(again)
					}
				}
			} else {
				failed++
			}
			_ = s.Describe() // may be called meanwhile
		}
	})
	began := time.Now()
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("it was away for %v", time.Since(began))
	select {
	case <-again:
	case <-time.After(30 * time.Second):
		t.Error("the pool does not come back")
	}
	cancel()
	working.Wait()

	var rows int64
	var started time.Time
	var setting string
	err = pool.QueryRow(t.Context(), "select count(*), pg_postmaster_start_time(), current_setting('max_connections') from n").Scan(&rows, &started, &setting)
	if err != nil {
		t.Fatal(err)
	}
	// What failed may have been committed: the answer was lost.
	if rows < committed || rows > committed+failed || setting != "42" {
		t.Errorf("of %d committed rows %d are there, max_connections is %s", committed, rows, setting)
	}
	if s.URL("") != address || s.Describe() != described {
		t.Errorf("%s was %s", s.Describe(), described)
	}
	if err := s.Restart(t.Context()); err != nil {
		t.Errorf("once more: %v", err)
	}
	var later time.Time
	for deadline := time.Now().Add(20 * time.Second); later.IsZero() && time.Now().Before(deadline); {
		_ = pool.QueryRow(t.Context(), "select pg_postmaster_start_time()").Scan(&later) // its old connections fail first
	}
	if !later.After(started) {
		t.Errorf("it runs since %v, and before it did since %v", later, started)
	}
}

var forty2 = map[string]string{"max_connections": "42"}

func TestRestart(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	l.settings = forty2
	s, err := l.start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Stop() })
	restarts(t, s)
	group, err := syscall.Getpgid(l.server.cmd.Process.Pid)
	if err != nil || group != l.guard.group() {
		t.Errorf("the new process is in group %d (%v): the guard, which leads %d, does not end it", group, err, l.guard.group())
	}
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
	if err := s.Restart(t.Context()); !errors.Is(err, errStopped) {
		t.Errorf("a restart after Stop: %v", err)
	}
	nothingLeft(t, l)
}

func TestRestartOfAContainer(t *testing.T) {
	t.Parallel()
	s, err := Start(t.Context(), Options{From: []Source{Docker}, Image: needsImage(t), Settings: forty2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Stop() })
	restarts(t, s)
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
	if err := s.Restart(t.Context()); !errors.Is(err, errStopped) {
		t.Errorf("a restart after Stop: %v", err)
	}
}

// Stop leaves nothing of a server whose restart is under way, whenever that is.
func TestStopDuringARestart(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"received fast shutdown request", "database system is shut down", "database system was shut down at", "ready to accept connections"} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			l := newLocal(t)
			s, err := l.start(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			connect(t, s.URL(""))
			var stopping sync.WaitGroup
			// Those words came with the start too, but from then on they are the restart's.
			l.log = &listener{words: when, then: func() {
				stopping.Go(func() {
					if err := s.Stop(); err != nil {
						t.Error(err)
					}
				})
			}}
			l.server.output.mu.Lock()
			l.server.output.log = l.log
			l.server.output.mu.Unlock()
			// The last words may be said too late.
			if err := s.Restart(t.Context()); err != nil && !errors.Is(err, errStopped) {
				t.Error(err)
			}
			stopping.Wait()
			if err := s.Stop(); err != nil {
				t.Error(err)
			}
			nothingLeft(t, l)
		})
	}
}

// A restart that is given up leaves a server that can be restarted again, or stopped.
func TestARestartThatIsGivenUp(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	s, err := l.start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Stop() })
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Restart(gone); !errors.Is(err, context.Canceled) {
		t.Errorf("without time: %v", err)
	}
	var restarting sync.WaitGroup
	for range 2 {
		restarting.Go(func() {
			if err := s.Restart(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	restarting.Wait()
	connect(t, s.URL(""))

	// Somebody else has the port when it starts again.
	_, port, err := net.SplitHostPort(strings.TrimPrefix(s.address, "//"))
	if err != nil {
		t.Fatal(err)
	}
	if err := l.server.shutDown(t.Context()); err != nil {
		t.Fatal(err)
	}
	other, err := net.Listen("tcp", net.JoinHostPort(loopback, port))
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if err := s.Restart(short); err == nil {
		t.Error("it started on a port that is taken")
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Restart(t.Context()); err != nil {
		t.Error(err)
	}
	connect(t, s.URL(""))
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
	nothingLeft(t, l)
}
