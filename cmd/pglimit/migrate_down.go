package main

import (
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pglimit/ratelimit/migrations"
)

const migrateDownLong = `Undo the migration that was applied last, or more with --to or --all. After
"pglimit migrate up" that is exclusion_range, although its version is not the
highest: it is optional, so it is applied last, and goes first.

The buckets go with the tables: services that still use them get errors until
the schema is migrated up again, and then find every bucket full. It does not
ask whether you are sure.` + lockHelp

func newMigrateDownCommand(a *app) *cobra.Command {
	var to int64
	all := false
	var options func() ([]migrations.Option, error)
	cmd := &cobra.Command{
		Use:   "down [--to VERSION | --all] [--lock-timeout TIME]",
		Short: "Undo the last migration, or more",
		Long:  migrateDownLong,
		Example: lines(
			"pglimit migrate down",
			"pglimit migrate down --to 1",
			"pglimit migrate down --all",
		),
		Args:                  noArgs,
		ValidArgsFunction:     cobra.NoFileCompletions,
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
				if chosen || all {
					return migrations.DownTo(ctx, pool, to, opts...)
				}
				return migrations.Down(ctx, pool, opts...)
			})
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().Int64Var(&to, "to", 0, "undo every migration above this `VERSION`")
	cmd.Flags().BoolVar(&all, "all", false, "undo every migration and remove the schema")
	noFiles(cmd, "to")
	options = lockTimeoutVar(a, cmd)
	return cmd
}
