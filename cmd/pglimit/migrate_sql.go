package main

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/pglimit/ratelimit/migrations"
)

const migrateSQLLong = `Print the migrations as SQL, for people who migrate with another tool.

It needs no database and prints SQL whatever --output says. The text has no
transaction of its own: give it one. It records what it applies, so that
"pglimit migrate status" knows about it.`

func newMigrateSQLCommand(a *app) *cobra.Command {
	down := false
	cmd := &cobra.Command{
		Use:   "sql",
		Short: "Print the migrations as SQL, for another tool",
		Long:  migrateSQLLong,
		Example: lines(
			"pglimit migrate sql > V7__pglimit.sql",
			"pglimit migrate sql | psql --single-transaction -v ON_ERROR_STOP=1 \"$DATABASE_URL\"",
			"pglimit migrate sql --down",
		),
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(*cobra.Command, []string) error {
			text, err := migrations.SQL(!down)
			if err != nil {
				return err
			}
			_, err = io.WriteString(a.stdout, text)
			return err
		},
	}
	cmd.Flags().BoolVar(&down, "down", false, "print what removes the schema")
	return cmd
}
