package main

import (
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pglimit/ratelimit/migrations"
)

const distributeLong = `Distribute the tables of the strategy token_bucket over the nodes of a Citus
cluster (13.2.1 or later), by key, with IDs, blocks and permits: the node that
has a key decides about it, by its clock. The database must be that of the
coordinator. Everything else stays there: the other strategies, the limits, the
schedule of the cleanup, and the record of what is migrated.

The rows move in one transaction, which takes some seconds for a million
buckets. No bucket is lost, and takes wait meanwhile. Distributed tables are
left alone. "pglimit migrate up" keeps them distributed, and
"pglimit migrate status" shows whether they are.` + lockHelp

func newDistributeCommand(a *app) *cobra.Command {
	undo := false
	var options func() ([]migrations.Option, error)
	cmd := &cobra.Command{
		Use:   "distribute [--undo] [--lock-timeout TIME]",
		Short: "Distribute the buckets over the nodes of Citus",
		Long:  distributeLong,
		Example: lines(
			"pglimit distribute",
			"pglimit distribute --undo",
		),
		Args:                  noArgs,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			opts, err := options()
			if err != nil {
				return err
			}
			pool, err := a.pool(ctx)
			if err != nil {
				return err
			}
			defer pool.Close()
			change := migrations.Distribute[*pgxpool.Pool]
			if undo {
				change = migrations.Undistribute[*pgxpool.Pool]
			}
			if err := change(ctx, pool, opts...); err != nil {
				return err
			}
			d, err := migrations.ReadDistribution(ctx, pool)
			if err != nil {
				return err
			}
			return a.print(d, "the tables are "+d.String()+"\n")
		},
	}
	cmd.Flags().BoolVar(&undo, "undo", false, "bring the tables back to the coordinator")
	options = lockTimeoutVar(a, cmd)
	return cmd
}
