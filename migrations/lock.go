package migrations

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// defaultLockTimeout is how long a statement of a migration waits for a lock.
const defaultLockTimeout = time.Second

// untilUnlocked runs attempt until it succeeds, or fails for another reason than a lock
// that another transaction holds.
//
// A statement that waits for a table lock makes every later statement on that table wait,
// even one that only reads. So it does not wait for long: the attempt is rolled back,
// which lets the others through, and made again after a pause, until ctx ends. In the
// pause the transaction stays open and keeps the lock under which migrations run: of many
// that are to migrate, one at a time disturbs the others.
func untilUnlocked(ctx context.Context, tx rate.Session, o options, attempt func() error) error {
	var locked *lockedError
	for tries := 1; ; tries++ {
		if _, err := tx.Exec(ctx, "savepoint attempt"); err != nil && locked == nil {
			return fail("cannot prepare the transaction", err)
		}
		err := explainLock(ctx, tx, attempt())
		met := errors.As(err, &locked)
		endedMeanwhile := locked != nil && ctx.Err() != nil && errors.Is(err, ctx.Err())
		if !met && !endedMeanwhile {
			return err
		}
		if ctx.Err() == nil {
			pause := min(max(o.lockTimeout, 100*time.Millisecond), 5*time.Second)
			pause = pause/2 + rand.N(pause)
			o.log.WarnContext(ctx, "pglimit: a migration waits for a lock, and is tried again",
				"error", locked, "tries", tries, "pause", pause.Round(time.Millisecond))
			select {
			case <-time.After(pause):
				continue
			case <-ctx.Done():
			}
		}
		return fmt.Errorf("%w (gave up in try %d: %w)", locked, tries, ctx.Err())
	}
}

// lockedError says that a migration failed because another transaction held a lock.
type lockedError struct{ *failure }

func (e *lockedError) Unwrap() error { return e.failure }

// explainLock turns an error that says that a lock could not be had into a *lockedError,
// and rolls back the attempt. It returns any other err as it is. A server that is slow to answer has as long
// as ctx, and some seconds more: also who gave up just now is told who holds the lock.
func explainLock(ctx context.Context, tx rate.Session, err error) error {
	var f *failure
	if !errors.As(err, &f) || !postgres.Is(err, postgres.LockNotAvailable, postgres.DeadlockDetected) {
		return err
	}
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(5*time.Second, cancel) })()
	if _, err := tx.Exec(longer, "rollback to savepoint attempt"); err != nil {
		return f
	}
	var holders *string
	if err := tx.Row(longer, lockHolders, []any{nil, false}, &holders); err == nil && holders != nil {
		f.advice = *holders
	}
	return &lockedError{f}
}

// lockHolders names the oldest three transactions that hold locks on the table $1; null: on any of ours; with $2 also
// those that have written anything. After the rollback nothing tells which of them the migration waited for, but long
// transactions are few.
const lockHolders = `
	select pg_catalog.string_agg(pg_catalog.format('process %s (role %s, application %s%s) %s',
		pid, usename, pg_catalog.quote_literal(application_name),
		', in a transaction for ' || pg_catalog.date_trunc('second', pg_catalog.clock_timestamp() - xact_start)::text,
		coalesce('holds locks on ' || relations, 'has not committed what it wrote')), '; ')
	from (
		select a.pid, a.usename, a.application_name, a.xact_start,
			pg_catalog.string_agg(distinct 'pglimit.' || c.relname, ', ') as relations
		from pg_catalog.pg_locks l
		left join (pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace and n.nspname = 'pglimit')
			on c.oid = l.relation and c.relkind <> 'i' and l.locktype = 'relation' and c.relname = coalesce($1::text, c.relname)
		join pg_catalog.pg_stat_activity a on a.pid = l.pid and a.datname = pg_catalog.current_database()
		where l.granted and l.pid <> pg_catalog.pg_backend_pid() and (c.oid is not null or $2::boolean and l.locktype = 'transactionid')
		group by a.pid, a.usename, a.application_name, a.xact_start
		order by a.xact_start
		limit 3
	) oldest`

// milliseconds is d for a setting of Postgres, rounded up because 0 means no limit there.
func milliseconds(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Millisecond-1)/time.Millisecond), 10)
}
