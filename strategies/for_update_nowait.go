package strategies

import (
	"context"
	_ "embed"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/ratelimit/pglimit"
)

// ForUpdateNowait locks the row or gives up at once, decides in Go, writes and
// commits.
//
//   - Locks: for a grant, the row, from the first round trip to the end of the
//     second; for a denial nothing, unless the tokens went to another between look
//     and lock. It never waits for a row. If another holds it,
//     the request is denied and the decision says Contended, whether or not
//     there were tokens.
//   - Round trips: two: begin, look and lock; write and commit. Several requests in one
//     call go one by one through a transaction.
//   - Rows: one per key that took tokens since it was last full and swept.
//   - Good at: never queueing. A slow holder costs the others a denial, not
//     their time.
//   - Bad at: hot keys, where most that could have been granted is denied as
//     contended; and a lock held over the network makes that likelier.
//
// It is the first design of the write-up, which kept the time of the last request;
// that is the case of a burst of one. Each contended denial is an ERROR in the
// server's log. (Two first requests of one key are the exception to "never waits":
// the later waits for the earlier's commit.)
//
// The zero value is ready to use, concurrently.
type ForUpdateNowait struct{}

var _ pglimit.Strategy = ForUpdateNowait{}

var (
	//go:embed for_update_nowait_look.sql
	nowaitLookFile string
	//go:embed for_update_nowait_lock.sql
	nowaitLockFile string
	//go:embed for_update_nowait_update.sql
	nowaitUpdateFile string
	//go:embed for_update_nowait_insert.sql
	nowaitInsertFile string
	//go:embed for_update_nowait_date.sql
	nowaitDateFile string

	nowaitTable  = newTable("for_update_nowait", sweepBucketsFile)
	nowaitLook   = statement(nowaitLookFile, "for_update_nowait")
	nowaitLock   = statement(nowaitLockFile, "for_update_nowait")
	nowaitUpdate = statement(nowaitUpdateFile, "for_update_nowait")
	nowaitInsert = statement(nowaitInsertFile, "for_update_nowait")
	nowaitDate   = statement(nowaitDateFile, "for_update_nowait")
)

// Name is for_update_nowait.
func (ForUpdateNowait) Name() string { return "for_update_nowait" }

// Check takes any limit.
func (ForUpdateNowait) Check(pglimit.Limit) error { return nil }

// Take decides in two round trips.
func (s ForUpdateNowait) Take(ctx context.Context, db pglimit.DB, requests []pglimit.Request) ([]pglimit.Decision, error) {
	if err := validate(s, requests); err != nil {
		return nil, err
	}
	return takeEach(ctx, db, requests, lockAndTake)
}

func lockAndTake(ctx context.Context, db pglimit.DB, r pglimit.Request, relaxed bool) (pglimit.Decision, error) {
	if r.Tokens == 0 {
		var seen sighting
		if err := db.QueryRow(ctx, nowaitLook, seen.args(r)...).Scan(seen.fields()...); err != nil {
			return pglimit.Decision{}, err
		}
		return seen.bucket.settle(seen.nowUS, scaleOf(r.Limit)).decision(r, 0), nil
	}
	var decision pglimit.Decision
	err := onOneConnection(ctx, db, func(conn pglimit.DB) error {
		b := blockOn(conn)
		for {
			d, decided, err := b.lockAndTake(ctx, r, relaxed)
			if err != nil {
				b.abandon(ctx)
				return err
			}
			if decided {
				decision = d
				return nil
			}
		}
	})
	return decision, err
}

// sighting is what a look shows: the bucket as last written, and the clock.
type sighting struct {
	bucket bucket
	exists bool
	nowUS  int64
}

func (*sighting) args(r pglimit.Request) []any {
	scale := scaleOf(r.Limit)
	return []any{r.Key, r.Limiter, scale.token, scale.refill, scale.burst}
}

func (s *sighting) fields() []any {
	return append([]any{&s.nowUS, &s.exists}, s.bucket.fields()...)
}

func (b *bucket) fields() []any {
	return []any{&b.debt, &b.atUS, &b.scale.token, &b.scale.refill, &b.scale.burst}
}

// lockAndTake is undecided if the row changed between look and lock so that neither
// tells enough: another made it, swept or reset it, or emptied it.
func (b *block) lockAndTake(ctx context.Context, r pglimit.Request, relaxed bool) (d pglimit.Decision, decided bool, err error) {
	scale := scaleOf(r.Limit)
	b.opened = false
	seen, locked, err := b.lookAndLock(ctx, r)
	contended := errors.Is(err, errContended)
	if err != nil && !contended {
		return d, false, err
	}
	now := seen.bucket.settle(seen.nowUS, scale)
	if contended {
		d = now.decision(r, 0)
		d.Contended = true
		return d, true, b.send(ctx, b.undo)
	}
	switch {
	case locked != nil:
		now = locked.bucket.settle(locked.nowUS, scale)
	case seen.exists && now.grantable(r) > 0:
		return d, false, b.send(ctx, b.undo)
	}
	granted := now.grantable(r)
	if granted == 0 {
		return now.decision(r, 0), true, b.send(ctx, b.keep)
	}
	now.debt += granted * scale.token
	if locked == nil {
		decided, err = b.insert(ctx, r, &now, relaxed)
	} else {
		decided, err = true, b.update(ctx, r, now, relaxed)
	}
	return now.decision(r, granted), decided, err
}

var errContended = errors.New("strategies: the row is locked")

// lookAndLock is the first round trip: open, look, lock, and read the clock once
// more, behind the lock. locked is nil if no row was locked.
func (b *block) lookAndLock(ctx context.Context, r pglimit.Request) (seen sighting, locked *sighting, err error) {
	var batch pgx.Batch
	batch.Queue(b.open)
	batch.Queue(nowaitLook, seen.args(r)...)
	batch.Queue(nowaitLock, append(seen.args(r), r.Tokens, r.Unit)...)
	batch.Queue("select pglimit.clock_us_v1()")
	results := b.conn.SendBatch(ctx, &batch)
	defer func() {
		if closed := results.Close(); err == nil {
			err = closed
		}
	}()

	if _, err = results.Exec(); err != nil {
		return seen, nil, err
	}
	b.opened = true
	if err = results.QueryRow().Scan(seen.fields()...); err != nil {
		return seen, nil, err
	}
	var row sighting
	switch err = results.QueryRow().Scan(row.bucket.fields()...); {
	case err == nil:
		locked = &row
	case errors.Is(err, pgx.ErrNoRows):
	default:
		var pg *pgconn.PgError
		if errors.As(err, &pg) && pg.Code == lockNotAvailable {
			err = errContended
		}
		return seen, nil, err
	}
	err = results.QueryRow().Scan(&row.nowUS)
	return seen, locked, err
}

// update is the second round trip: write to the row that is locked, and keep.
func (b *block) update(ctx context.Context, r pglimit.Request, after bucket, relaxed bool) error {
	var batch pgx.Batch
	batch.Queue(nowaitUpdate, after.args(r)...)
	return b.keepWith(ctx, &batch, relaxed)
}

// insert is the second round trip for a key without a row. It reports whether
// the row was written: not, if another's insert was sooner.
func (b *block) insert(ctx context.Context, r pglimit.Request, after *bucket, relaxed bool) (wrote bool, err error) {
	var batch pgx.Batch
	batch.Queue(nowaitInsert, after.args(r)...).Exec(func(tag pgconn.CommandTag) error {
		wrote = tag.RowsAffected() > 0
		return nil
	})
	batch.Queue(nowaitDate, r.Key, r.Limiter, after.atUS).QueryRow(func(row pgx.Row) error {
		var atUS int64
		err := row.Scan(&atUS)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		after.atUS = atUS
		return err
	})
	err = b.keepWith(ctx, &batch, relaxed)
	return wrote, err
}

func (b *block) keepWith(ctx context.Context, batch *pgx.Batch, relaxed bool) error {
	if relaxed {
		batch.Queue("select pg_catalog.set_config('synchronous_commit', 'off', true)")
	}
	batch.Queue(b.keep)
	return b.conn.SendBatch(ctx, batch).Close()
}

func (b bucket) args(r pglimit.Request) []any {
	return []any{r.Key, r.Limiter, b.debt, b.atUS, b.scale.token, b.scale.refill, b.scale.burst}
}

// GiveBack reduces the debt, each row in an update of its own.
func (s ForUpdateNowait) GiveBack(ctx context.Context, db pglimit.DB, refunds []pglimit.Refund) error {
	return giveBack(ctx, db, s, refunds, nowaitTable.giveBack, bucketRefund)
}

// Reset deletes the row.
func (ForUpdateNowait) Reset(ctx context.Context, db pglimit.DB, limiter, key string) error {
	return nowaitTable.resetKey(ctx, db, limiter, key)
}

// Sweep walks the table by pages.
func (ForUpdateNowait) Sweep(ctx context.Context, db pglimit.DB, from pglimit.Cursor, limit int) (pglimit.Swept, error) {
	return nowaitTable.sweepBatch(ctx, db, from, limit)
}
