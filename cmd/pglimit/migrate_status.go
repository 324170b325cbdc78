package main

import (
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglimit/ratelimit/migrations"
)

func newMigrateStatusCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "List the migrations, and which the database has",
		Long:  "List the migrations, and which the database has. It only reads. Times are UTC.",
		Example: lines(
			"pglimit migrate status",
			"pglimit migrate status --output json | jq .version",
		),
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			pool, err := a.pool(cmd.Context())
			if err != nil {
				return err
			}
			defer pool.Close()
			list, err := migrations.Status(cmd.Context(), pool)
			if err != nil {
				return err
			}
			status := newStatusJSON(list)
			return a.print(status, status.text())
		},
	}
}

// statusJSON is which migrations a database has, for machines.
type statusJSON struct {
	Version    int64           `json:"version"` // the highest that is applied, 0 for none
	Migrations []migrationJSON `json:"migrations"`
}

func newStatusJSON(list []migrations.Migration) statusJSON {
	out := statusJSON{Migrations: []migrationJSON{}}
	for _, m := range list {
		if m.Applied {
			out.Version = max(out.Version, m.Version)
		}
		out.Migrations = append(out.Migrations, newMigrationJSON(m))
	}
	return out
}

func (s statusJSON) text() string {
	var rows [][]string
	for _, m := range s.Migrations {
		name, state := m.Name, "pending"
		switch {
		case m.Applied:
			state = "applied " + m.AppliedAt.Format(time.DateTime)
		case m.Optional:
			state = "pending (optional)"
		}
		if name == "" {
			name = "(of a newer release)"
		}
		rows = append(rows, []string{strconv.FormatInt(m.Version, 10), name, state})
	}
	return columns([]string{"VERSION", "NAME", "STATE"}, rows)
}
