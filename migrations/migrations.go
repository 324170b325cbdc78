// Package migrations puts the schema pglimit into a database, and takes it out
// again.
//
//	pool, err := pgxpool.New(ctx, url)
//	err = migrations.Up(ctx, pool)
//
// Call [Up] when the service starts, in every instance: one of them migrates and
// the others wait for it. If there is nothing to do, Up only reads.
//
// Each of these functions makes its changes in one transaction, on one connection
// of the pool or of the *sql.DB: all of them or none. The transaction locks the version table, which
// lets one process migrate at a time. So a connection comes back as it
// was, a pool of one connection is enough, and a PgBouncer in transaction mode may
// be in between.
//
// They wait until the context ends, for each other and for locks that other
// transactions have on our tables; statement_timeout and lock_timeout of the pool
// do not apply. Decisions do not wait behind them for long: see [WithLockTimeout].
// All are safe for concurrent use, in any number of processes. Their errors have
// one line, and hold a [*pgconn.PgError] where Postgres refused.
//
// The table pglimit.goose_db_version says which migrations are applied: the
// application's own migrations, with goose or without, are left alone. To run ours
// with another tool, see [FS] and [SQL].
package migrations

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// DB is what an application has: a *pgxpool.Pool, or a *sql.DB with the driver
// github.com/jackc/pgx/v5/stdlib or github.com/lib/pq. GORM, sqlx, Bun and ent have a *sql.DB:
// see pglimit.NewSQL. Of a type that embeds one, such as sqlx.DB, pass the field DB.
type DB interface{ postgres.DB }

// Up brings the database to the schema of this release. If it is there already, Up only
// reads, and needs only the right to read.
//
// Up, like the others that change the schema, refuses one that holds what another role has made: its owner could have
// others run code of its own. It must belong to the role that migrates, to one whose rights that role has, or to a
// superuser. (A superuser has the rights of all, so for one it must be a superuser's: or migrate with "set role" to the
// owner.)
//
// An error that satisfies errors.Is(err, [ErrBtreeGist]) means that the strategy exclusion_range could not be migrated
// and that everything else was; the next Up tries again. Functions that are not this release's, because somebody
// changed them, are put back; of a table it can only say so, with an [ErrDiffers]: the rest is migrated then, too.
// After any other error the database is as it was before.
//
// A database that a newer release has migrated is left as it is, without an error:
// while that release rolls out, the instances of this one go on working.
func Up[D DB](ctx context.Context, db D, opts ...Option) error {
	o := newOptions(opts)
	if !o.waitForServer {
		return up(ctx, postgres.On(db), o)
	}
	return untilReached(ctx, o, func() error { return up(ctx, postgres.On(db), o) })
}

func up(ctx context.Context, db rate.Session, o options) error {
	applied, err := readApplied(ctx, db)
	if err != nil {
		return err
	}
	if err := checkOwners(ctx, db); err != nil {
		return err
	}
	differ, err := differences(ctx, db, applied)
	if err != nil {
		return err
	}
	if len(o.pending(applied)) == 0 && !slices.ContainsFunc(differ, isFunction) {
		o.log.InfoContext(ctx, "pglimit: nothing to migrate", "version", applied.highest())
		return errDiffers(differ)
	}
	o.creates = true
	return inTransaction(ctx, db, o, func(s *session) error {
		// Others may have migrated while this one waited for its turn.
		applied, err := s.applied(ctx)
		if err != nil {
			return err
		}
		d, err := readDistribution(ctx, s.tx)
		if err != nil {
			return err
		}
		var refused error
		pending := o.pending(applied)
		for _, m := range pending {
			err := s.apply(ctx, m, true)
			if m.Optional && errors.Is(err, ErrBtreeGist) {
				refused = err
				continue
			}
			if err != nil {
				return err
			}
		}
		var differ []string
		if len(applied) > 0 {
			var put []string
			if applied, err = s.applied(ctx); err == nil {
				put, differ, err = s.putFunctions(ctx, applied, len(d.Tables) > 0)
			}
			if err != nil {
				return err
			}
			if len(put) > 0 && len(pending) == 0 {
				s.done = append(s.done, func() {
					s.log.WarnContext(ctx, "pglimit: functions were not this release's, and are put back", "differed", put)
				})
			}
		}
		if len(d.Tables) > 0 {
			if err := s.distribute(ctx, applied); err != nil {
				return err
			}
		}
		if err := s.commit(ctx); err != nil {
			return err
		}
		return errors.Join(refused, errDiffers(differ))
	})
}

// Down undoes the migration that was applied last. Undoing the first removes the schema,
// as DownTo(ctx, pool, 0) does. If nothing is applied, Down does nothing; DownTo(ctx,
// pool, 0) then removes a version table that was left behind empty.
//
// The buckets go with the tables: afterwards every bucket is full.
func Down[D DB](ctx context.Context, db D, opts ...Option) error {
	return down(ctx, postgres.On(db), opts, func(applied appliedList) (undo appliedList, all bool) {
		return applied[max(0, len(applied)-1):], len(applied) == 1
	})
}

// DownTo undoes every migration above the version, the last applied first.
//
// DownTo 0 also removes the schema. The extension btree_gist stays, because others may use
// it by now. If the role may not create schemas, an administrator made this one: it
// stays, empty. If it holds objects of others, they and the schema stay, and the error
// names them; everything of pglimit is gone then.
func DownTo[D DB](ctx context.Context, db D, version int64, opts ...Option) error {
	if version < 0 {
		return fmt.Errorf("migrations: version %d is negative: 0 undoes everything", version)
	}
	return down(ctx, postgres.On(db), opts, func(applied appliedList) (undo appliedList, all bool) {
		return applied.above(version), version == 0
	})
}

// down undoes the applied migrations that choose returns. If choose says that these are
// all, it also removes the version table and the schema.
func down(ctx context.Context, db rate.Session, opts []Option, choose func(appliedList) (undo appliedList, all bool)) error {
	o := newOptions(opts)
	return inTransaction(ctx, db, o, func(s *session) error {
		applied, err := s.applied(ctx)
		if err != nil {
			return err
		}
		undo, all := choose(applied)
		if all && len(undo) > 0 {
			// The migrations drop the tables in another order.
			tables, err := readStorage(ctx, s.tx)
			if err == nil {
				_, err = s.lockTables(ctx, tables)
			}
			if err != nil && !errors.Is(err, errNoTables) {
				return explain(ctx, s.tx, "cannot undo migration "+known[0].Name, err)
			}
		}
		for i := len(undo) - 1; i >= 0; i-- {
			m, known := find(undo[i].Version)
			if !known {
				return fmt.Errorf("migrations: the database has version %d, which is newer than this release (%d): migrate it down with the release that applied it",
					undo[i].Version, latest())
			}
			if err := s.apply(ctx, m, false); err != nil {
				return err
			}
		}
		var foreign error
		if all {
			if err = s.dropMore(ctx); err == nil {
				foreign, err = s.dropSchema(ctx)
			}
			if err != nil {
				return err
			}
		}
		if err := s.commit(ctx); err != nil {
			return err
		}
		return foreign
	})
}
