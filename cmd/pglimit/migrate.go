package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pglimit/ratelimit/migrations"
)

const migrateLong = `Put the schema pglimit into the database, and take it out again.

Everything lives in the schema pglimit, the record of what is applied included:
an application's own migrations are left alone.`

func newMigrateCommand(a *app) *cobra.Command {
	return group(&cobra.Command{
		Use:   "migrate",
		Short: "Put the schema into the database, or take it out",
		Long:  migrateLong,
		Example: lines(
			"pglimit migrate up",
			"pglimit migrate status",
		),
	}, newMigrateUpCommand(a), newMigrateDownCommand(a), newMigrateStatusCommand(a),
		newMigrateSQLCommand(a), newMigrateGrantsCommand(a))
}

// lockTimeoutVar defines the flag --lock-timeout. It returns a function that makes the options, and has the migration
// say on stderr what it waits for.
func lockTimeoutVar(a *app, cmd *cobra.Command) func() ([]migrations.Option, error) {
	timeout := cmd.Flags().Duration("lock-timeout", time.Second,
		"longest `TIME` that a statement waits for a lock; 0 for as long as it takes")
	return func() ([]migrations.Option, error) {
		if *timeout < 0 {
			return nil, fmt.Errorf("--lock-timeout is %v: it must not be negative", *timeout)
		}
		return []migrations.Option{migrations.WithLockTimeout(*timeout),
			migrations.WithLogger(a.logger(slog.LevelWarn))}, nil
	}
}

// lockHelp is part of the help of commands that change the schema.
const lockHelp = `
If a long transaction holds a lock that the migration needs, other statements
would wait behind the migration. So it waits for --lock-timeout at most, lets
them through, says on stderr who has the lock, and tries again until it
succeeds.`

// migrate calls do, which changes the schema, and prints what the database has then, also if do fails: some of it may be
// done.
func (a *app) migrate(ctx context.Context, do func(*pgxpool.Pool) error, options ...migrations.Option) error {
	pool, err := a.pool(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	failed := do(pool)
	status, err := readStatus(ctx, pool, options...)
	if err != nil {
		return cmp.Or(failed, err)
	}
	return errors.Join(failed, a.print(status, status.text()))
}
