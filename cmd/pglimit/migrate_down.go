package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pglimit/ratelimit/migrations"
)

const migrateDownLong = `Undo the migration that was applied last, or more with --to or --all. After
"pglimit migrate up" that is exclusion_range, although its version is not the
highest: it is optional, so it is applied last, and goes first.

Services get errors until the schema is migrated up again. Version 1 has the
tables: once it is undone, every bucket is full. Where that removes rules of
limits, their history or permits that are held, it says how many, and does it
only with --yes.` + lockHelp

func newMigrateDownCommand(a *app) *cobra.Command {
	var to int64
	all, yes := false, false
	var options func() ([]migrations.Option, error)
	cmd := &cobra.Command{
		Use:   "down [--to VERSION | --all] [--yes] [--lock-timeout TIME]",
		Short: "Undo the last migration, or more",
		Long:  migrateDownLong,
		Example: lines(
			"pglimit migrate down",
			"pglimit migrate down --to 1",
			"pglimit migrate down --all",
		),
		Args:                  noArgs,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			chosen := cmd.Flags().Changed("to")
			switch {
			case chosen && all:
				return usagef(cmd, "--to and --all exclude each other: --all is --to 0")
			case to < 0:
				return fmt.Errorf("--to is %d: it must be a version, or 0 to undo everything", to)
			}
			opts, err := options()
			if err != nil {
				return err
			}
			return a.migrate(ctx, func(pool *pgxpool.Pool) error {
				if lost, err := lostByDown(ctx, pool, chosen || all, to); err != nil {
					return err
				} else if lost != "" && !yes {
					return fmt.Errorf("this removes %s for good (\"pglimit limits export\" saves the rules): nothing "+
						"was done; --yes does it", lost)
				}
				if chosen || all {
					return migrations.DownTo(ctx, pool, to, opts...)
				}
				return migrations.Down(ctx, pool, opts...)
			})
		},
	}
	cmd.Flags().Int64Var(&to, "to", 0, "undo every migration above this `VERSION`")
	cmd.Flags().BoolVar(&all, "all", false, "undo every migration and remove the schema")
	cmd.Flags().BoolVar(&yes, "yes", false, "remove rules of limits, their history and permits, too")
	options = lockTimeoutVar(a, cmd)
	return cmd
}

// lostByDown counts the rows that undoing would lose for good: of the last migration, or of all above a version.
func lostByDown(ctx context.Context, pool *pgxpool.Pool, above bool, to int64) (string, error) {
	status, err := migrations.Status(ctx, pool)
	if err != nil {
		return "", err
	}
	undone := onlyIn(status, nil)
	if above {
		undone = slices.DeleteFunc(undone, func(m migrations.Migration) bool { return m.Version <= to })
	} else {
		undone = undone[max(0, len(undone)-1):]
	}
	if !slices.ContainsFunc(undone, func(m migrations.Migration) bool { return m.Name == "tables" }) {
		return "", nil
	}
	var lost []string
	for _, kind := range []struct{ count, what string }{
		{"select pg_catalog.count(*) from pglimit.limits", "rules of limits"},
		{"select pg_catalog.count(*) from pglimit.limits_history", "changes in their history"},
		{`select pg_catalog.count(*) from pglimit.permits p, pg_catalog.unnest(p.until_ns) until
			where p.limiter operator(pg_catalog.<>) 'pglimit.jobs' and until operator(pg_catalog.>)
				(extract(epoch from pg_catalog.clock_timestamp()) operator(pg_catalog.*) 1000000000.0)::bigint`,
			"permits that are held"},
	} {
		var n int64
		if err := pool.QueryRow(ctx, kind.count).Scan(&n); err != nil {
			return "", err
		}
		if n > 0 {
			lost = append(lost, fmt.Sprintf("%d %s", n, kind.what))
		}
	}
	return strings.Join(lost, ", "), nil
}
