package cleanup

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// lock is a lock of a job: a transaction, whose heartbeats show the server that this process is
// alive, and this process that it still has the connection.
type lock struct {
	job    string
	config LockerConfig
	onLost func(error)

	taken chan struct{} // closed: it is held
	stop  chan struct{} // closed: it is to be released
	ended chan error    // how the transaction ended

	once sync.Once
	err  error // of Unlock
}

// hold holds the lock on the connection until it is stopped, or lost.
func (l *lock) hold(ctx context.Context, conn rate.Session) error {
	step, cancel := context.WithTimeout(ctx, l.config.Timeout)
	defer cancel()
	// Read committed releases its snapshot after each statement, and a read-only
	// transaction never gets an id. The pool's defaults may be otherwise.
	_, err := conn.Exec(step, "begin isolation level read committed read only")
	if err != nil {
		return err
	}
	silence := strconv.FormatInt((4 * l.config.Heartbeat).Milliseconds(), 10)
	var locked bool
	if err = conn.Row(step, lockSQL, []any{l.job, silence}, &locked, nil, nil); err == nil && locked {
		if err = heartbeat(step, conn); err == nil {
			close(l.taken)
			err = l.beat(conn)
		}
	} else if err == nil {
		err = ErrLocked
	}
	// At shutdown ctx is cancelled. If it fails, the connection is not used again, which ends the transaction too.
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.config.Timeout)
	defer cancel()
	if _, failed := conn.Exec(undo, "rollback"); err == nil && failed != nil {
		err = fmt.Errorf("%w: %w", ErrLost, failed)
	}
	return err
}

// beat returns an ErrLost, or nil once the lock is to be released.
func (l *lock) beat(conn rate.Session) error {
	ticker := time.NewTicker(l.config.Heartbeat)
	defer ticker.Stop()
	for {
		select {
		case <-l.stop:
			return nil
		case <-ticker.C:
		}
		ctx, cancel := context.WithTimeout(context.Background(), l.config.Timeout)
		err := heartbeat(ctx, conn)
		cancel()
		if err != nil {
			err = fmt.Errorf("%w: %w", ErrLost, err)
			l.onLost(err)
			return err
		}
	}
}

// heartbeat shows the server that the holder is alive, and ends the statement before it: a driver may
// have left that open, and its snapshot would hold back vacuum. This statement has none.
func heartbeat(ctx context.Context, conn rate.Session) error {
	_, err := conn.Exec(ctx, "set transaction read only")
	return err
}

// Unlock releases the lock and its connection. It works although ctx is cancelled,
// because at shutdown gocron's is, and takes at most twice LockerConfig.Timeout. The
// error is an [ErrLost] if the lock was gone before. Calling it again does nothing and
// returns the same.
func (l *lock) Unlock(context.Context) error {
	l.once.Do(func() {
		close(l.stop)
		l.err = <-l.ended
	})
	return l.err
}
