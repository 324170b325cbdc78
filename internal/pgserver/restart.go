package pgserver

import (
	"context"
	"errors"
	"fmt"
	"time"
)

var (
	errStopped   = errors.New("it was stopped")
	errNoRestart = errors.New("a PgBouncer cannot be restarted")
)

// Restart shuts the server down and starts it again, with the same address, settings and data,
// and returns once it answers. Until then connections are refused.
//
// It is a fast shutdown: clients are disconnected and what they had under way is rolled back. What
// was committed is kept, and so are the statistics and unlogged tables. It is not a crash (unless a container takes longer than a minute
// to shut down: then the engine kills it).
//
// The context bounds it. After an error the server may be up or down; it can be restarted again,
// and must be stopped. Stop during a restart ends it, and leaves nothing running. Of two calls at
// once, one waits for the other. It returns an error for a PgBouncer.
func (s *Server) Restart(ctx context.Context) error {
	if s.reboot == nil {
		return fmt.Errorf("pgserver: %w", errNoRestart)
	}
	s.changing.Lock()
	defer s.changing.Unlock()
	select {
	case <-s.stopping: // there is nothing left to restart
		return fmt.Errorf("pgserver: the restart: %w", errStopped)
	default:
	}
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	go func() {
		select {
		case <-s.stopping:
			giveUp(errStopped)
		case <-ctx.Done():
		}
	}()
	err := s.reboot(ctx, s)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	if err != nil {
		return fmt.Errorf("pgserver: the restart: %w", err)
	}
	return nil
}

// restart ends the process and starts another in the same process group, which the guard ends if
// our process is killed.
func (l *local) restart(ctx context.Context, s *Server) error {
	if err := l.server.shutDown(ctx); err != nil {
		return err
	}
	return again(ctx, func() error { return l.serve(ctx, s) })
}

// again starts a server at the address that it had. Another process may have its port for a
// moment: perhaps it looks for a free port too.
func again(ctx context.Context, start func() error) (err error) {
	for range 50 {
		if err = start(); !errors.Is(err, errPortTaken) {
			break
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
	return err
}

// shutDown ends postgres in good order. It does not kill it if that takes long: what was left in
// memory would have to be recovered.
func (p *process) shutDown(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyWithin, fmt.Errorf("not shut down within %v", readyWithin))
	defer cancel()
	_ = p.cmd.Process.Signal(interrupt) // fails if it has ended
	select {
	case <-p.exited:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
