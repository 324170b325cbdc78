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
)

func TestRestart(t *testing.T) {
	t.Parallel()
	l := newPrepared(t)
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

// Stop leaves nothing of a server whose restart is under way, whenever that is.
func TestStopDuringARestart(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"received fast shutdown request", "database system is shut down", "database system was shut down at", "ready to accept connections"} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			l := newPrepared(t)
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
	l := newPrepared(t)
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
	inTime, cancel := context.WithCancel(t.Context())
	defer cancel()
	l.log = &listener{words: "could not bind", then: cancel}
	if err := s.Restart(inTime); err == nil {
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
