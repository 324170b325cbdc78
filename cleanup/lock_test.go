package cleanup

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// fakeTx is a transaction that says when it is asked something, and answers what
// it is told.
type fakeTx struct {
	pgx.Tx
	beats       chan struct{}
	beatErr     error
	rollbackErr error
	rollbacks   int
	rollbackCtx error
}

func (f *fakeTx) Exec(context.Context, string, ...any) (pgconn.CommandTag, error) {
	select {
	case f.beats <- struct{}{}:
	default:
	}
	return pgconn.CommandTag{}, f.beatErr
}

func (f *fakeTx) Rollback(ctx context.Context) error {
	f.rollbacks++
	f.rollbackCtx = ctx.Err()
	return f.rollbackErr
}

// That no goroutine is left is for TestMain to see.
func TestUnlockEndsTheTransactionAlthoughItsContextIsCancelled(t *testing.T) {
	t.Parallel()
	tx := &fakeTx{beats: make(chan struct{}, 2)}
	l := keep(tx, func() {}, LockerConfig{Timeout: time.Second, Heartbeat: time.Millisecond}, func(err error) { t.Errorf("lost: %v", err) })
	within(t, "a heartbeat", tx.beats)
	within(t, "another", tx.beats)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 2 {
		if err := l.Unlock(ctx); err != nil {
			t.Errorf("Unlock: %v", err)
		}
	}
	if tx.rollbacks != 1 || tx.rollbackCtx != nil {
		t.Errorf("got %d rollbacks, with a context that says %v; want one, with a live context", tx.rollbacks, tx.rollbackCtx)
	}
}

func TestHeartbeatFindsThatTheLockIsLost(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	tx := &fakeTx{beatErr: broken, rollbackErr: errors.New("also broken")}
	lost := make(chan error, 1)
	l := keep(tx, func() {}, LockerConfig{Timeout: time.Second, Heartbeat: time.Millisecond}, func(err error) { lost <- err })
	if err := within(t, "OnLost is called", lost); !errors.Is(err, ErrLost) || !errors.Is(err, broken) {
		t.Errorf("OnLost: got %v, want ErrLost and the cause", err)
	}
	if err := l.Unlock(t.Context()); !errors.Is(err, ErrLost) || !errors.Is(err, broken) {
		t.Errorf("Unlock: got %v, want ErrLost and the cause", err)
	}
	if tx.rollbacks != 1 {
		t.Errorf("got %d rollbacks, want the one that returns the connection", tx.rollbacks)
	}
}

func TestUnlockFindsThatTheLockIsLost(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	l := keep(&fakeTx{rollbackErr: broken}, func() {}, LockerConfig{Timeout: time.Second, Heartbeat: time.Hour}, nil)
	if err := l.Unlock(t.Context()); !errors.Is(err, ErrLost) || !errors.Is(err, broken) {
		t.Errorf("got %v, want ErrLost and the cause", err)
	}
}
