package cleanup

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/semaphore"
)

//go:embed claim.sql
var claimSQL string

var _ gocron.Locker = (*Locker)(nil)

// Locker lets one of any number of instances run a gocron job, and lets it run
// once per interval. It is safe for concurrent use and for PgBouncer in
// transaction mode: it leaves nothing in a session.
//
// A run must pass two checks. Only Postgres's clock counts in them, and none of
// the instances':
//
//  1. The table pglimit.schedule says when the job is due next. Claiming a run
//     sets this to nine tenths of an interval from now: instances whose clocks
//     differ by less than that do not run a tick twice, and an instance that
//     ticks a little early does not skip its turn. If it is not due: [ErrNotDue].
//  2. A permit of the semaphore "pglimit.jobs", which has one place for each job, keeps a run that
//     takes longer than the interval from overlapping with the next. It is renewed for as long as
//     the run lasts; between two renewals it holds no connection. If another run has it: [ErrLocked].
//
// The claim comes first and is not taken back. If another run then has the permit,
// or the process dies, that tick is lost, and the next comes an interval later.
// The permit is released when the run ends. If the process or its machine dies, it
// ends after LockerConfig.TTL.
type Locker struct {
	session rate.Session
	turns   *semaphore.Semaphore
	config  LockerConfig
}

// LockerConfig says how a [Locker] works. The zero value of each field is its
// default.
type LockerConfig struct {
	// Interval between two runs of a job. For a cron job: the shortest time between
	// two of its times. Jobs of different intervals need different Lockers. At
	// least 1ms. Zero: one minute.
	Interval time.Duration

	// TTL is how long a process that has died keeps a job. From 100ms to 24h. Zero: 20s.
	TTL time.Duration

	// OnLost is called if the lock of a running job is gone, or about to end while Postgres does not answer; the error
	// is an [ErrLost]. Another instance may then begin a run, so the job should end. It is called in a goroutine of its
	// own. Nil: only Unlock returns the error.
	OnLost func(job string, err error)
}

// timeout of each step that asks Postgres something, waiting for a connection of the pool included.
const timeout = 5 * time.Second

// NewLocker makes a [Locker], which needs the migrated schema pglimit.
func NewLocker[D DB](db D, config LockerConfig) (*Locker, error) {
	config.Interval, config.TTL = cmp.Or(config.Interval, time.Minute), cmp.Or(config.TTL, 20*time.Second)
	if config.Interval < time.Millisecond {
		return nil, fmt.Errorf("cleanup: LockerConfig.Interval is %v: it must be at least 1ms, or 0 for one minute", config.Interval)
	}
	if config.TTL < 100*time.Millisecond || config.TTL > 24*time.Hour {
		return nil, fmt.Errorf("cleanup: LockerConfig.TTL is %v: it must be from 100ms to 24h, or 0 for 20s", config.TTL)
	}
	session := postgres.On(db)
	if session == nil {
		return nil, errors.New("cleanup: the pool is nil")
	}
	turns, err := semaphore.New(db, semaphore.Config{
		Name: "pglimit.jobs", Places: 1, TTL: config.TTL, Timeout: min(timeout, config.TTL),
	})
	if err != nil {
		return nil, fmt.Errorf("cleanup: LockerConfig: %w", err)
	}
	return &Locker{session, turns, config}, nil
}

// Lock claims a run of the job and takes its lock. It returns [ErrNotDue] or [ErrLocked],
// or the error that kept it from asking. gocron calls it before each run, with the job's
// name, and Unlock after it.
func (l *Locker) Lock(ctx context.Context, job string) (gocron.Lock, error) {
	if err := l.claim(ctx, job); err != nil {
		return nil, err
	}
	return l.hold(ctx, job)
}

// claim claims the run of this interval, unless that has been done. At READ COMMITTED a row that another has just
// written is read again.
func (l *Locker) claim(ctx context.Context, job string) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	interval, claimed := l.config.Interval.Seconds(), false
	_, err := l.session.Pipeline(ctx,
		rate.Statement{SQL: "begin isolation level read committed"},
		rate.Statement{SQL: claimSQL, Args: []any{job, interval, interval / 10}, Into: []any{&claimed}},
		rate.Statement{SQL: "commit"})
	switch {
	case err != nil:
		return explain("could not claim a run of "+strconv.Quote(job), err)
	case !claimed:
		return ErrNotDue
	}
	return nil
}

// turn is the lock of a job.
type turn interface {
	gocron.Lock
	Context() context.Context // ends if the lock is lost: see stopped
}

// hold takes the lock, whether or not a run is due. It is not given up halfway: nobody would wait for the release of a
// permit that comes after that.
func (l *Locker) hold(ctx context.Context, job string) (turn, error) {
	permit, ok, err := l.turns.TryAcquire(context.WithoutCancel(ctx), job)
	switch {
	case err != nil:
		return nil, explain("could not ask for the lock of "+strconv.Quote(job), err)
	case !ok:
		return nil, ErrLocked
	}
	ctx, cancel := context.WithCancelCause(ctx)
	context.AfterFunc(permit.Context(), func() {
		why := context.Cause(permit.Context())
		cancel(why)
		// gocron may have cancelled ctx before, while the job still runs.
		if errors.Is(why, semaphore.ErrLost) && l.config.OnLost != nil {
			l.config.OnLost(job, ErrLost)
		}
	})
	return held{permit, ctx}, nil
}

type held struct {
	*semaphore.Permit
	ctx context.Context //nolint:containedctx // of the run
}

// Context ends with that of hold, and when the permit is lost or released.
func (h held) Context() context.Context { return h.ctx }

// Unlock releases the lock. It works even if ctx is cancelled, because gocron's context is at shutdown. The error
// is an [ErrLost] if the lock was gone before. After an error, a second call tries again.
func (h held) Unlock(ctx context.Context) error {
	err := h.Release(ctx)
	switch {
	case errors.Is(err, semaphore.ErrLost):
		return ErrLost
	case err != nil:
		return explain("could not give the lock back, which ends by itself", err)
	}
	return nil
}
