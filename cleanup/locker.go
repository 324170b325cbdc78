package cleanup

import (
	"cmp"
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

var (
	//go:embed claim.sql
	claimSQL string
	//go:embed lock.sql
	lockSQL string
	//go:embed unlock.sql
	unlockSQL string
)

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
//  2. The table pglimit.job_locks says who runs the job now, which keeps a run that
//     takes longer than the interval from overlapping with the next. The holder
//     renews its row; between two heartbeats it holds no connection. If another run
//     has the lock: [ErrLocked].
//
// The claim comes first and is not taken back. If another run then has the lock,
// or the process dies, that tick is lost, and the next comes an interval later.
// The lock is released when the run ends. If the process or its machine dies, it
// ends after four heartbeats without a sign of life.
type Locker struct {
	session rate.Session
	config  LockerConfig
}

// LockerConfig says how a [Locker] works. The zero value of each field is its
// default.
type LockerConfig struct {
	// Interval between two runs of a job. For a cron job: the shortest time between
	// two of its times. Jobs of different intervals need different Lockers. At
	// least 1ms. Zero: one minute.
	Interval time.Duration

	// Timeout of each step that asks Postgres something (the claim, the lock,
	// a heartbeat, the release), waiting for a connection of the pool included.
	// Zero: 5s.
	Timeout time.Duration

	// Heartbeat is how often the holder renews its lock, which ends after four times
	// as long without that. At least 1ms. Zero: 5s.
	Heartbeat time.Duration

	// OnLost is called if the lock of a running job is gone, or about to end while Postgres does not answer; the error
	// is an [ErrLost]. Another instance may then begin a run, so the job should end. It must return soon and must not
	// call Unlock. Nil: only Unlock returns the error.
	OnLost func(job string, err error)
}

func (c LockerConfig) withDefaults() LockerConfig {
	c.Interval, c.Timeout, c.Heartbeat = cmp.Or(c.Interval, time.Minute), cmp.Or(c.Timeout, 5*time.Second), cmp.Or(c.Heartbeat, 5*time.Second)
	if c.OnLost == nil {
		c.OnLost = func(string, error) {}
	}
	return c
}

// NewLocker makes a [Locker], which needs the migrated schema pglimit.
func NewLocker[D DB](db D, config LockerConfig) (*Locker, error) {
	return newLocker(postgres.On(db), config)
}

func newLocker(session rate.Session, config LockerConfig) (*Locker, error) {
	config = config.withDefaults()
	switch {
	case session == nil:
		return nil, errors.New("cleanup: the pool is nil")
	case config.Interval < time.Millisecond:
		return nil, fmt.Errorf("cleanup: LockerConfig.Interval is %v: it must be at least 1ms, or 0 for one minute", config.Interval)
	case config.Timeout < 0:
		return nil, fmt.Errorf("cleanup: LockerConfig.Timeout is %v: it must not be negative; 0 means 5s", config.Timeout)
	case config.Heartbeat < time.Millisecond:
		return nil, fmt.Errorf("cleanup: LockerConfig.Heartbeat is %v: it must be at least 1ms, or 0 for 5s", config.Heartbeat)
	}
	return &Locker{session: session, config: config}, nil
}

// Lock claims a run of the job and takes its lock. It returns [ErrNotDue] or [ErrLocked],
// or the error that kept it from asking. gocron calls it before each run, with the job's
// name, and Unlock after it.
func (l *Locker) Lock(ctx context.Context, job string) (gocron.Lock, error) {
	if err := l.claim(ctx, job); err != nil {
		return nil, err
	}
	return l.hold(ctx, job, func(err error) { l.config.OnLost(job, err) })
}

// ask sends a statement that answers yes or no, at READ COMMITTED: a row that another has just written is read again.
func ask(ctx context.Context, session rate.Session, sql string, args ...any) (yes bool, err error) {
	_, err = session.Pipeline(ctx,
		rate.Statement{SQL: "begin isolation level read committed"},
		rate.Statement{SQL: sql, Args: args, Into: []any{&yes}},
		rate.Statement{SQL: "commit"})
	return yes, err
}

// claim claims the run of this interval, unless that has been done.
func (l *Locker) claim(ctx context.Context, job string) error {
	ctx, cancel := context.WithTimeout(ctx, l.config.Timeout)
	defer cancel()
	interval := l.config.Interval.Seconds()
	switch claimed, err := ask(ctx, l.session, claimSQL, job, interval, interval/10); {
	case err != nil:
		return explain("could not claim a run of "+strconv.Quote(job), err)
	case !claimed:
		return ErrNotDue
	}
	return nil
}

// hold takes the lock, whether or not a run is due.
func (l *Locker) hold(ctx context.Context, job string, onLost func(error)) (gocron.Lock, error) {
	held := &lock{
		session: l.session, job: job, holder: rand.Text(), config: l.config, onLost: onLost,
		stop: make(chan struct{}), ended: make(chan error, 1),
	}
	asked := time.Now()
	ctx, cancel := context.WithTimeout(ctx, l.config.Timeout)
	defer cancel()
	switch err := held.renew(ctx); {
	case errors.Is(err, errAnothers):
		return nil, ErrLocked
	case err != nil:
		return nil, explain("could not ask for the lock of "+strconv.Quote(job), err)
	}
	go func() { held.ended <- held.beat(asked) }()
	return held, nil
}
