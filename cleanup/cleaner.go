package cleanup

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// JobName names the cleanup: as a gocron job, in the table pglimit.schedule, and
// as the key of its permit.
const JobName = "pglimit.cleanup"

// Cleaner sweeps the tables of strategies, on a schedule or once. Make one with
// [New]. It is safe for concurrent use, and remembers nothing of the rows.
type Cleaner struct {
	session    rate.Session
	locker     locker
	strategies []rate.Sweeper
	config     Config

	// State of the schedule, see schedule.go.
	live     context.Context    //nolint:containedctx // it ends with Stop, not with a call
	end      context.CancelFunc // no new run, and the running one ends
	mu       sync.Mutex         // guards started, unwatch and quit; no runs.Add comes after end
	runs     sync.WaitGroup
	started  bool
	unwatch  func() bool  // stops watching the context of Start
	quit     func() error // shuts down the scheduler, or removes the job from the caller's
	stopping sync.Once
	ended    chan struct{} // closed when everything has ended
	endErr   error
}

// locker is the part of a [Locker] that a Cleaner uses.
type locker interface {
	claim(ctx context.Context, job string) error
	hold(ctx context.Context, job string) (turn, error)
}

// DB is an application's pool: a *pgxpool.Pool, or a *sql.DB with the driver github.com/jackc/pgx/v5/stdlib or
// github.com/lib/pq. GORM, sqlx, Bun and ent have a *sql.DB: see pglimit.NewSQL. If your type embeds one, as sqlx.DB
// does, pass its field DB.
type DB interface{ postgres.DB }

// New makes a [Cleaner] for the strategies, usually strategies.All(). It does not call Postgres yet.
func New[D DB, S rate.Sweeper](db D, strategies []S, config Config) (*Cleaner, error) {
	config = config.withDefaults()
	if err := config.validate(); err != nil {
		return nil, err
	}
	if len(strategies) == 0 {
		return nil, errors.New("cleanup: there are no strategies to sweep: pass strategies.All()")
	}
	sweepers := make([]rate.Sweeper, len(strategies)+1)
	for i, strategy := range strategies {
		if sweepers[i] = strategy; sweepers[i] == nil {
			return nil, fmt.Errorf("cleanup: strategy %d is nil", i)
		}
	}
	sweepers[len(strategies)] = topKeys{}
	locker, err := NewLocker(db, LockerConfig{Interval: config.Interval})
	if err != nil {
		return nil, err
	}
	return newCleaner(locker.session, locker, sweepers, config), nil
}

func newCleaner(session rate.Session, locker locker, strategies []rate.Sweeper, config Config) *Cleaner {
	c := &Cleaner{session: session, locker: locker, strategies: strategies, config: config, ended: make(chan struct{})}
	c.live, c.end = context.WithCancel(context.Background())
	return c
}

// RunOnce sweeps now, whether or not a run is due, and does not change the schedule. It takes the lock of a scheduled
// run, so the two never overlap: the error is [ErrLocked] if a run is in progress. The Cleaner need not be started.
//
// The error is the report's Err. When ctx is cancelled, the running batch is cancelled too. Earlier batches stay done,
// and the report counts them.
func (c *Cleaner) RunOnce(ctx context.Context) (Report, error) {
	report := c.run(ctx)
	report.log(c.config.Logger)
	return report, report.Err
}

// run sweeps under the lock. A lost lock cancels the run: going on would do no harm, but another instance may do the
// work now.
func (c *Cleaner) run(ctx context.Context) (report Report) {
	start := time.Now()
	held, err := c.locker.hold(ctx, JobName)
	if err != nil {
		return Report{Err: err}
	}
	defer func() {
		report.fail(held.Unlock(ctx))
		report.Duration = time.Since(start)
	}()
	return c.sweepAll(held.Context())
}
