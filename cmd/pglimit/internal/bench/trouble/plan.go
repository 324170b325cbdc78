package trouble

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// DefaultLockFor is the default of [Plan.LockFor].
const DefaultLockFor = 100 * time.Millisecond

// Plan is the faults to inject. The zero value: none.
type Plan struct {
	// LockShare is the share of the keys whose rows somebody else holds locked, at any time:
	// from 0 to 1. Any share above 0 is at least one key. Zero: no locks. (Callers of
	// exclusion_range do not notice: it locks no rows.) Each lock writes some WAL.
	LockShare float64

	// LockFor is how long the rows are held before others are. Zero: [DefaultLockFor].
	LockFor time.Duration

	// Seed of the choice of keys: the same seed chooses the same keys in the same order.
	Seed uint64

	// RestartAfter is when the server is restarted, counted from the beginning of Run. Zero: it
	// is not.
	RestartAfter time.Duration
}

// Target is what the faults apply to.
type Target struct {
	// Database is where the rows are, and Application the application_name of the session that
	// holds them. It is one connection, beside those of the callers.
	Database    *pgx.ConnConfig
	Application string

	// Table is the table's qualified name: pglimit.upsert. It has a column key, and a column
	// limiter unless Limiter is empty, as for the published statements.
	Table, Limiter string

	// Keys are the keys of the load.
	Keys []string

	// Restart restarts the server and returns once it answers again. Nil: it cannot be restarted.
	Restart func(context.Context) error
}

// Report is the outcome.
type Report struct {
	// LockedKeys is how many keys are chosen at a time. A key that has no row yet is not locked.
	LockedKeys int

	// RowLocks is how many rows were locked, and Held for how long, added up: 3 rows for 100 ms
	// each are 300 ms. Held divided by the length of the run is how many were locked at a time.
	RowLocks int64
	Held     time.Duration

	// Lost is how often the session that held rows lost its connection, as in a restart.
	Lost int64

	// Restarted says whether the server was restarted, and Away how long that took, from the
	// order to shut down to the first answer.
	Restarted bool
	Away      time.Duration
}

// Any says whether the plan has any trouble in it.
func (p Plan) Any() bool { return p.LockShare > 0 || p.RestartAfter > 0 }

// Validate returns an error that names the field that makes no sense.
func (p Plan) Validate() error {
	switch {
	case !(p.LockShare >= 0 && p.LockShare <= 1): // NaN is neither
		return fmt.Errorf("Plan.LockShare is %v: it must be from 0 to 1", p.LockShare)
	case p.LockFor < 0:
		return fmt.Errorf("Plan.LockFor is %v: it must not be negative", p.LockFor)
	case p.RestartAfter < 0:
		return fmt.Errorf("Plan.RestartAfter is %v: it must not be negative", p.RestartAfter)
	}
	return nil
}

func (p Plan) validateFor(t Target) error {
	if err := p.Validate(); err != nil {
		return err
	}
	switch {
	case p.LockShare > 0 && len(t.Keys) == 0:
		return errors.New("Target.Keys is empty: there is nothing to lock")
	case p.RestartAfter > 0 && t.Restart == nil:
		return errors.New("Target.Restart is nil: only a throwaway server can be restarted")
	}
	return nil
}

// Run injects the faults until ctx ends, which is no error. Then it leaves no session and no lock. A restart that has
// begun is finished nevertheless, because tidying up needs the server.
//
// It returns early with an error if a fault cannot be injected as planned: the server does not come back, or the rows
// may not be locked. The report says what was done until then.
//
// Locks do not deadlock with callers: rows are locked in the order of their keys, like the strategies do, and a wait
// for one ends after 50 ms.
func (p Plan) Run(ctx context.Context, t Target) (Report, error) {
	var report Report
	if err := p.validateFor(t); err != nil {
		return report, fmt.Errorf("trouble: %w", err)
	}
	ctx, giveUp := context.WithCancel(ctx)
	defer giveUp()
	var working sync.WaitGroup
	var locking, restarting error
	if p.LockShare > 0 {
		h := newHolder(p, t)
		report.LockedKeys = h.atATime
		working.Go(func() {
			if locking = h.run(ctx); locking != nil {
				giveUp()
			}
			report.RowLocks, report.Held, report.Lost = h.rowLocks, h.held, h.lost
		})
	}
	if p.RestartAfter > 0 {
		working.Go(func() {
			if report.Restarted, report.Away, restarting = restartAfter(ctx, p.RestartAfter, t.Restart); restarting != nil {
				giveUp()
			}
		})
	}
	working.Wait()
	return report, errors.Join(locking, restarting)
}
