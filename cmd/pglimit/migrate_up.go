package main

import (
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pglimit/ratelimit/migrations"
)

const migrateUpLong = `Bring the database to the schema of this release, and print what it has then.

Any number of instances may do this at once. Each run is all or nothing, with
one exception: the strategy exclusion_range needs the extension btree_gist. If
that cannot be created, everything else is applied all the same and the exit
code is 2; with --without-exclusion-range the extension is not needed.` + lockHelp

func newMigrateUpCommand(a *app) *cobra.Command {
	without := false
	var options func() ([]migrations.Option, error)
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Bring the database to the schema of this release",
		Long:  migrateUpLong,
		Example: lines(
			"pglimit migrate up",
			"pglimit migrate up --without-exclusion-range",
		),
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts, err := options()
			if err != nil {
				return err
			}
			if without {
				opts = append(opts, migrations.WithoutExclusionRange())
			}
			return a.migrate(cmd.Context(), func(pool *pgxpool.Pool) error {
				return migrations.Up(cmd.Context(), pool, opts...)
			}, opts...)
		},
	}
	cmd.Flags().BoolVar(&without, "without-exclusion-range", false,
		"leave out the strategy exclusion_range, which needs the extension btree_gist")
	options = lockTimeoutVar(a, cmd)
	return cmd
}
