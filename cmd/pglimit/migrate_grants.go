package main

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/pglimit/ratelimit/migrations"
)

const migrateGrantsLong = `Print the grants that a role needs, as SQL.

  decide            take, peek, give back, reset and lease: what a service needs
  decide-and-sweep  also run the cleanup
  read              read the views pglimit.buckets and pglimit.ranges, and peek
  limits            change the limits in the table pglimit.limits ("pglimit
                    limits"), but not their history, and read as above

None includes the record of what is migrated, so a service that has only these
rights cannot migrate: run "pglimit migrate up" as the owner of the schema.

It needs no database, prints SQL whatever --output says, and does not know
whether the role exists. Run what it prints as the owner of the schema, and
again after a migration that adds tables or functions.`

func newMigrateGrantsCommand(a *app) *cobra.Command {
	purpose := string(migrations.ToDecide)
	without := false
	cmd := &cobra.Command{
		Use:   "grants ROLE",
		Short: "Print the grants for a role that is not the owner",
		Long:  migrateGrantsLong,
		Example: lines(
			"pglimit migrate grants app | psql -1 -v ON_ERROR_STOP=1 \"$DATABASE_URL\"",
			"pglimit migrate grants janitor --for decide-and-sweep",
		),
		Args: takes("ROLE"),
		RunE: func(_ *cobra.Command, args []string) error {
			var options []migrations.Option
			if without {
				options = append(options, migrations.WithoutExclusionRange())
			}
			text, err := migrations.Grants(args[0], migrations.Purpose(purpose), options...)
			if err != nil {
				return err
			}
			_, err = io.WriteString(a.stdout, text)
			return err
		},
	}
	var purposes []string
	for _, p := range migrations.Purposes() {
		purposes = append(purposes, string(p))
	}
	choiceVar(cmd, cmd.Flags(), &purpose, "for", "`PURPOSE` of the role", purposes...)
	cmd.Flags().BoolVar(&without, "without-exclusion-range", false,
		"leave out the strategy exclusion_range, where it is not migrated")
	return cmd
}
