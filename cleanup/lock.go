package cleanup

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// lock is a held lock: an open transaction, and a goroutine whose heartbeats show the
// server that this process is alive, and this process that it still has the connection.
type lock struct {
	tx      pgx.Tx
	release func() // its connection
	timeout time.Duration

	stop    chan struct{} // closed: no more heartbeats
	beating chan struct{} // closed: the goroutine has ended
	lost    error         // set before beating is closed

	once sync.Once
	err  error // of Unlock
}

func keep(tx pgx.Tx, release func(), config LockerConfig, onLost func(error)) *lock {
	l := &lock{
		tx:      tx,
		release: release,
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

// heartbeat shows the server that the holder is alive, and releases the snapshot of the
// statement before it. It uses the simple protocol: a statement sent by the extended one
// leaves its portal open, which would hold back vacuum.
func heartbeat(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, "select 1", pgx.QueryExecModeSimpleProtocol)
	return err
}

// Unlock releases the lock and its connection. It works although ctx is cancelled,
// because at shutdown gocron's is, and takes at most twice LockerConfig.Timeout. The
// error is an [ErrLost] if the lock was gone before. Calling it again does nothing and
// returns the same.
func (l *lock) Unlock(ctx context.Context) error {
	l.once.Do(func() {
		close(l.stop)
		<-l.beating
		err := rollback(ctx, l.tx, l.timeout)
		l.release()
		switch {
		case l.lost != nil:
			l.err = l.lost
		case err != nil:
			l.err = fmt.Errorf("%w: %w", ErrLost, err)
		}
	})
	return l.err
}

// rollback ends a transaction, also when ctx is cancelled. If it fails, pgx closes the
// connection, which ends the transaction too.
func rollback(ctx context.Context, tx pgx.Tx, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	return tx.Rollback(ctx)
}
