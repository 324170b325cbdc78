package cleanup

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// lock is one that is held: an open transaction, and a goroutine that shows the
// server, and finds out for itself, that both ends are still there.
type lock struct {
	tx      pgx.Tx
	timeout time.Duration

	stop    chan struct{} // closed: no more heartbeats
	beating chan struct{} // closed: the goroutine is gone
	lost    error         // set before beating is closed

	once sync.Once
	err  error // of Unlock
}

func keep(tx pgx.Tx, config LockerConfig, onLost func(error)) *lock {
	l := &lock{
		tx:      tx,
		timeout: config.Timeout,
		stop:    make(chan struct{}),
		beating: make(chan struct{}),
	}
	go l.beat(config.Heartbeat, onLost)
	return l
}

func (l *lock) beat(every time.Duration, onLost func(error)) {
	defer close(l.beating)
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-l.stop:
			return
		case <-ticker.C:
		}
		ctx, cancel := context.WithTimeout(context.Background(), l.timeout)
		err := heartbeat(ctx, l.tx)
		cancel()
		if err != nil {
			l.lost = fmt.Errorf("%w: %w", ErrLost, err)
			onLost(l.lost)
			return
		}
	}
}

// heartbeat is a sign of life, and lets go of the snapshot of the statement before
// it. Without parameters it goes by the simple protocol; a statement that goes by
// the extended one leaves its portal open, which would hold back vacuum.
func heartbeat(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, "select 1", pgx.QueryExecModeSimpleProtocol)
	return err
}

// Unlock lets go of the lock and of its connection. It ignores that ctx is
// cancelled, because at shutdown gocron's is; it takes at most twice
// LockerConfig.Timeout. The error is an [ErrLost] if the lock was gone before.
// Calling it again does nothing and returns the same.
func (l *lock) Unlock(ctx context.Context) error {
	l.once.Do(func() {
		close(l.stop)
		<-l.beating
		// After a loss as well: it is what returns the connection to the pool.
		err := rollback(ctx, l.tx, l.timeout)
		switch {
		case l.lost != nil:
			l.err = l.lost
		case err != nil:
			l.err = fmt.Errorf("%w: %w", ErrLost, err)
		}
	})
	return l.err
}

// rollback ends a transaction, also when ctx is cancelled. If that fails, the
// connection is closed, which ends it too.
func rollback(ctx context.Context, tx pgx.Tx, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	return tx.Rollback(ctx)
}
