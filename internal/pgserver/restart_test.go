//go:build unix

package pgserver

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
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
	// It is not ours, to which Ctrl-C goes: the group of the terminal's foreground.
	group, err := syscall.Getpgid(l.process.cmd.Process.Pid)
	if err != nil || group != l.guard.group() || group == syscall.Getpgrp() {
		t.Errorf("the new process is in group %d (%v): the guard, which leads %d, does not end it", group, err, l.guard.group())
	}
	if isThere(filepath.Join(l.dir, "password")) {
		t.Error("the password lies about")
	}
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
	nothingLeft(t, l)
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
	_, port, err := net.SplitHostPort(s.address)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.process.end(syscall.SIGINT, time.Minute); err != nil {
		t.Fatal(err)
	}
	other, err := net.Listen("tcp", net.JoinHostPort(loopback, port))
	if err != nil {
		t.Fatal(err)
	}
	if err := l.serve(t.Context(), s); !errors.Is(err, errPortTaken) {
		t.Errorf("on a port that is taken: %v", err)
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
