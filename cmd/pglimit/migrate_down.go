package main

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pglimit/ratelimit/migrations"
)

const migrateDownLong = `Undo every migration above --to VERSION, and print what is left.

Services get errors until the schema is migrated up again. Version 1 has the
tables. So --to 0 removes the schema, with the rules of limits ("pglimit limits
export" saves them), their history and the permits that are held, and fills
every bucket. It does that only with --yes.` + lockHelp

func newMigrateDownCommand(a *app) *cobra.Command {
	var to int64
	yes := false
	var options func() ([]migrations.Option, error)
	cmd := &cobra.Command{
		Use:   "down --to VERSION [--yes] [--lock-timeout TIME]",
		Short: "Undo migrations, down to a version",
		Long:  migrateDownLong,
		Example: lines(
			"pglimit migrate down --to 1",
			"pglimit migrate down --to 0 --yes",
		),
		Args:                  noArgs,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts, err := options()
			switch {
			case err != nil:
				return err
			case !cmd.Flags().Changed("to"):
				return usagef(cmd, "down needs --to VERSION: \"pglimit migrate status\" lists them, and 0 undoes all")
			case to < 0:
				return fmt.Errorf("--to is %d: it must be a version, or 0 to undo everything", to)
			case to == 0 && !yes:
				return errors.New("--to 0 removes the tables for good, with the rules of limits (\"pglimit limits " +
					"export\" saves them): nothing was done; --yes does it")
			}
			return a.migrate(cmd.Context(), func(pool *pgxpool.Pool) error {
				return migrations.DownTo(cmd.Context(), pool, to, opts...)
			})
		},
	}
	cmd.Flags().Int64Var(&to, "to", 0, "undo every migration above this `VERSION` (required)")
	cmd.Flags().BoolVar(&yes, "yes", false, "remove the tables, too")
	options = lockTimeoutVar(a, cmd)
	return cmd
}
