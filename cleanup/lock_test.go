package cleanup

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// fakeConn is a connection that says when it is asked something, and answers what
// it is told. It has the lock.
type fakeConn struct {
	rate.Session
	beats       chan struct{}
	beatErr     error
	rollbackErr error
	rollbacks   int
	rollbackCtx error
}

func (f *fakeConn) OneConnection(_ context.Context, do func(rate.Session) error) error { return do(f) }

func (*fakeConn) Row(_ context.Context, _ string, _ []any, into ...any) error {
	*into[0].(*bool) = true
	return nil
}

func (f *fakeConn) Exec(ctx context.Context, statement string, _ ...any) (int64, error) {
	switch {
	case statement == "rollback":
		f.rollbacks++
		f.rollbackCtx = ctx.Err()
		return 0, f.rollbackErr
	case strings.HasPrefix(statement, "begin"):
		return 0, nil
	}
	select {
	case f.beats <- struct{}{}:
		return 0, nil
	default:
		return 0, f.beatErr
	}
}

func (f *fakeConn) lock(t *testing.T, heartbeat time.Duration, onLost func(error)) gocron.Lock {
	t.Helper()
	l, err := (&Locker{f, LockerConfig{Timeout: time.Second, Heartbeat: heartbeat}}).hold(t.Context(), "job", onLost)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// That no goroutine is left is for TestMain to see.
func TestUnlockEndsTheTransactionAlthoughItsContextIsCancelled(t *testing.T) {
	t.Parallel()
	conn := &fakeConn{beats: make(chan struct{}, 3)} // one of them takes the lock
	l := conn.lock(t, time.Millisecond, func(err error) { t.Errorf("lost: %v", err) })
	within(t, "a heartbeat", conn.beats)
	within(t, "another", conn.beats)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 2 {
		if err := l.Unlock(ctx); err != nil {
			t.Errorf("Unlock: %v", err)
		}
	}
	if conn.rollbacks != 1 || conn.rollbackCtx != nil {
		t.Errorf("got %d rollbacks, with a context that says %v; want one, with a live context", conn.rollbacks, conn.rollbackCtx)
	}
}

func TestHeartbeatFindsThatTheLockIsLost(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	conn := &fakeConn{beats: make(chan struct{}, 1), beatErr: broken, rollbackErr: errors.New("also broken")}
	lost := make(chan error, 1)
	l := conn.lock(t, time.Millisecond, func(err error) { lost <- err })
	if err := within(t, "OnLost is called", lost); !errors.Is(err, ErrLost) || !errors.Is(err, broken) {
		t.Errorf("OnLost: got %v, want ErrLost and the cause", err)
	}
	if err := l.Unlock(t.Context()); !errors.Is(err, ErrLost) || !errors.Is(err, broken) {
		t.Errorf("Unlock: got %v, want ErrLost and the cause", err)
	}
	if conn.rollbacks != 1 {
		t.Errorf("got %d rollbacks, want the one that returns the connection", conn.rollbacks)
	}
}

func TestUnlockFindsThatTheLockIsLost(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	l := (&fakeConn{beats: make(chan struct{}, 1), rollbackErr: broken}).lock(t, time.Hour, nil)
	if err := l.Unlock(t.Context()); !errors.Is(err, ErrLost) || !errors.Is(err, broken) {
		t.Errorf("got %v, want ErrLost and the cause", err)
	}
}
