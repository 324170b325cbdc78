package cleanup

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// silences is how many heartbeats a lock survives without renewal.
const silences = 4

var errAnothers = errors.New("another has it")

// lock is a lock of a job: a row that says until when it lasts. Heartbeats extend it.
type lock struct {
	session     rate.Session
	job, holder string
	config      LockerConfig
	onLost      func(error)

	stop  chan struct{} // closed: it is to be released
	ended chan error    // how that went

	once sync.Once
	err  error // of Unlock
}

// ask runs a statement that says whether this process has the lock.
func (l *lock) ask(ctx context.Context, statement string, args ...any) error {
	ours, err := ask(ctx, l.session, statement, append([]any{l.job, l.holder}, args...)...)
	if err == nil && !ours {
		return errAnothers
	}
	return err
}

func (l *lock) renew(ctx context.Context) error {
	return l.ask(ctx, lockSQL, (silences * l.config.Heartbeat).Seconds())
}

// beat renews the lock until it is released or lost: to another process, or because there is no time for another try.
// It was renewed last at the time renewed, by this process's clock.
func (l *lock) beat(renewed time.Time) error {
	ticker := time.NewTicker(l.config.Heartbeat)
	defer ticker.Stop()
	for {
		select {
		case <-l.stop:
			ctx, cancel := context.WithTimeout(context.Background(), l.config.Timeout)
			defer cancel()
			if err := l.ask(ctx, unlockSQL); err != nil {
				return fmt.Errorf("%w: %w", ErrLost, err)
			}
			return nil
		case <-ticker.C:
		}
		asked, end := time.Now(), renewed.Add(silences*l.config.Heartbeat)
		ctx, cancel := context.WithDeadline(context.Background(), end)
		ctx, stop := context.WithTimeout(ctx, l.config.Timeout)
		err := l.renew(ctx)
		stop()
		cancel()
		switch {
		case err == nil:
			renewed = asked
		case errors.Is(err, errAnothers) || time.Until(end) < l.config.Heartbeat:
			err = fmt.Errorf("%w: %w", ErrLost, err)
			l.onLost(err)
			return err
		}
	}
}

// Unlock releases the lock. It works even if ctx is cancelled, because gocron's context is at shutdown, and takes at
// most twice LockerConfig.Timeout. The error is an [ErrLost] if the lock was gone before. A second call does nothing
// and returns the same.
func (l *lock) Unlock(context.Context) error {
	l.once.Do(func() {
		close(l.stop)
		l.err = <-l.ended
	})
	return l.err
}
