// Package migrations puts the schema pglimit into a database, and takes it out
// again.
//
//	pool, err := pgxpool.New(ctx, url)
//	err = migrations.Up(ctx, pool)
//
// Call [Up] when the service starts, in every instance: one of them migrates, the
// others wait for it, and where nothing is to be done it is one read.
//
// Everything that these functions change, they change in one transaction on one
// connection of the pool: it is all there afterwards, or nothing is. A lock that
// lasts as long as the transaction lets one of them work at a time. So a
// connection comes back as it was, a pool of one connection is enough, and
// PgBouncer may pool transactions in between.
//
// They wait as long as the context lets them, for each other and for locks that
// somebody's transaction has on a table of ours; statement_timeout and lock_timeout
// of the pool do not apply. Nobody waits behind them for long meanwhile: see
// [WithLockTimeout]. All are safe for concurrent use, in any number of
// processes. Their errors are of one line, and a [*pgconn.PgError] can be found
// in them where Postgres refused.
//
// Which migrations are applied is kept in pglimit.goose_db_version: the
// application's own migrations, with goose or without, are left alone. Those who
// would rather run ours with their own tool find them in [FS] and [SQL].
package migrations

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Up brings the database to the schema of this release. Where it is there already,
// Up only reads, for which the right to read suffices.
//
// An error that satisfies errors.Is(err, [ErrBtreeGist]) means that the strategy
// exclusion_range could not be migrated and that everything else was; the next Up
// tries again. After any other error the database is as it was before.
//
// A database that a newer release has migrated is left as it is, without an error:
// while that release rolls out, the instances of this one go on working.
func Up(ctx context.Context, pool *pgxpool.Pool, opts ...Option) error {
	o := newOptions(opts)
	if !o.waitForServer {
		return up(ctx, pool, o)
	}
	return untilReached(ctx, o, func() error { return up(ctx, pool, o) })
}

func up(ctx context.Context, pool *pgxpool.Pool, o options) error {
	applied, err := readApplied(ctx, pool)
	if err != nil {
		return err
	}
	todo := o.pending(applied)
	if len(todo) == 0 {
		o.log.InfoContext(ctx, "pglimit: nothing to migrate", "version", applied.highest())
		return nil
	}
	return inTransaction(ctx, pool, o, func(s *session) error {
		if err := s.createSchema(ctx); err != nil {
			return err
		}
		// Others may have migrated while this one waited for the lock.
		applied, err := s.applied(ctx)
		if err != nil {
			return err
		}
		var refused error
		for _, m := range o.pending(applied) {
			err := s.apply(ctx, m, true)
			if m.Optional && errors.Is(err, ErrBtreeGist) {
				refused = err
				continue
			}
			if err != nil {
				return err
			}
		}
		if err := s.commit(ctx); err != nil {
			return err
		}
		return refused
	})
}

// Down undoes the migration that was applied last. Undoing the first removes the
// schema, as DownTo(ctx, pool, 0) does. Where nothing is applied it does nothing: a
// version table that is there all the same, empty, goes with DownTo(ctx, pool, 0).
//
// The state of the limiters goes with the tables: afterwards every bucket is full.
func Down(ctx context.Context, pool *pgxpool.Pool, opts ...Option) error {
	return down(ctx, pool, opts, func(applied appliedList) (undo appliedList, all bool) {
		return applied[max(0, len(applied)-1):], len(applied) == 1
	})
}

// DownTo undoes every migration above the version, the last applied first.
//
// DownTo 0 leaves nothing behind: the schema goes too, and the extension btree_gist
// if it came with it. A schema that an administrator made for a role that could not
// make it again stays, empty. If somebody else's objects live in the schema, they
// and it stay, and the error names them; everything of pglimit is gone then.
func DownTo(ctx context.Context, pool *pgxpool.Pool, version int64, opts ...Option) error {
	if version < 0 {
		return fmt.Errorf("migrations: version %d is negative: 0 undoes everything", version)
	}
	return down(ctx, pool, opts, func(applied appliedList) (undo appliedList, all bool) {
		return applied.above(version), version == 0
	})
}

// down undoes those of the applied migrations that choose returns, and removes the
// version table and the schema if that is all.
func down(ctx context.Context, pool *pgxpool.Pool, opts []Option, choose func(appliedList) (undo appliedList, all bool)) error {
	o := newOptions(opts)
	return inTransaction(ctx, pool, o, func(s *session) error {
		applied, err := s.applied(ctx)
		if err != nil {
			return err
		}
		undo, all := choose(applied)
		for i := len(undo) - 1; i >= 0; i-- {
			m, known := find(undo[i].version)
			if !known {
				return fmt.Errorf("migrations: the database has version %d, which is newer than this release (%d): migrate it down with the release that applied it",
					undo[i].version, latest())
			}
			if err := s.apply(ctx, m, false); err != nil {
				return err
			}
		}
		var foreign error
		if all {
			if foreign, err = s.dropSchema(ctx); err != nil {
				return err
			}
		}
		if err := s.commit(ctx); err != nil {
			return err
		}
		return foreign
	})
}
