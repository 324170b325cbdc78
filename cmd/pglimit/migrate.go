package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
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
			"pglimit migrate sql | psql -1 -v ON_ERROR_STOP=1 \"$DATABASE_URL\"",
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

type migrationJSON struct {
	Version   int64      `json:"version"`
	Name      string     `json:"name"` // "" if only a newer release knows it
	Optional  bool       `json:"optional"`
	Applied   bool       `json:"applied"`
	AppliedAt *time.Time `json:"applied_at"` // null if it is not applied
}

func newMigrationJSON(m migrations.Migration) migrationJSON {
	out := migrationJSON{Version: m.Version, Name: m.Name, Optional: m.Optional, Applied: m.Applied}
	if m.Applied {
		out.AppliedAt = &m.AppliedAt
	}
	return out
}

// changeJSON is what migrating up or down changed, for machines.
type changeJSON struct {
	Version int64           `json:"version"` // the highest that is applied now
	Changed []migrationJSON `json:"changed"` // in the order in which it was done, as they are now
}

// migrate calls do, which changes the schema, and prints the changes. If do fails, migrate prints what was changed
// anyway, and returns the error.
func (a *app) migrate(ctx context.Context, do func(*pgxpool.Pool) error) error {
	pool, err := a.pool(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	before, err := migrations.Status(ctx, pool)
	if err != nil {
		return err
	}
	failed := do(pool)
	after, err := migrations.Status(ctx, pool)
	if err != nil {
		if failed != nil {
			return failed
		}
		return err
	}
	change := changed(before, after)
	if failed != nil && len(change.Changed) == 0 {
		return failed
	}
	if err := a.print(change, change.text()); err != nil {
		return err
	}
	return failed
}

// changed says what differs between before and after.
func changed(before, after []migrations.Migration) changeJSON {
	out := changeJSON{Changed: []migrationJSON{}}
	for _, m := range after {
		if m.Applied {
			out.Version = max(out.Version, m.Version)
		}
	}
	for _, m := range onlyIn(after, before) {
		out.Changed = append(out.Changed, newMigrationJSON(m))
	}
	for _, m := range slices.Backward(onlyIn(before, after)) {
		m.Applied, m.AppliedAt = false, time.Time{}
		out.Changed = append(out.Changed, newMigrationJSON(m))
	}
	return out
}

// onlyIn lists what is applied in one list and not in the other, in the order in which it was applied. Migrations of
// one transaction have the same time; the optional ones come last.
func onlyIn(list, other []migrations.Migration) []migrations.Migration {
	list = slices.DeleteFunc(slices.Clone(list), func(m migrations.Migration) bool {
		return !m.Applied ||
			slices.ContainsFunc(other, func(n migrations.Migration) bool { return n.Version == m.Version && n.Applied })
	})
	slices.SortStableFunc(list, func(a, b migrations.Migration) int {
		switch {
		case !a.AppliedAt.Equal(b.AppliedAt):
			return a.AppliedAt.Compare(b.AppliedAt)
		case a.Optional == b.Optional:
			return cmp.Compare(a.Version, b.Version)
		case b.Optional:
			return -1
		}
		return 1
	})
	return list
}

func (c changeJSON) text() string {
	text := ""
	for _, m := range c.Changed {
		verb := "undone"
		if m.Applied {
			verb = "applied"
		}
		text += verb + " " + strconv.FormatInt(m.Version, 10) + " " + m.Name + "\n"
	}
	if text == "" {
		text = "nothing to do\n"
	}
	if c.Version == 0 {
		return text + "no migration is applied\n"
	}
	return text + "the schema pglimit is at version " + strconv.FormatInt(c.Version, 10) + "\n"
}
