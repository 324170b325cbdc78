package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pglimit/ratelimit/migrations"
)

const migrateStatusLong = `List the migrations, and which the database has. It only reads. Times are UTC.
If Citus distributes the tables, it says over how many nodes.

A last line says if memory is short: if the tables of the buckets and their
indexes, as of their last analyze, do not fit into shared_buffers.

It lists what is missing or differs from this release: "pglimit migrate up"
replaces functions, but does not change tables.

With --check the exit code is 1 if "pglimit migrate up" would apply or replace
something, or if a table differs, and 0 if not. The strategy exclusion_range
counts too: if you migrate up with --without-exclusion-range, give it here as
well. A database that a newer release has migrated needs nothing.`

func newMigrateStatusCommand(a *app) *cobra.Command {
	check, without := false, false
	cmd := &cobra.Command{
		Use:   "status",
		Short: "List the migrations, and which the database has",
		Long:  migrateStatusLong,
		Example: lines(
			"pglimit migrate status",
			"pglimit migrate status --check || pglimit migrate up",
			"pglimit migrate status --output json | jq .version",
		),
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			pool, err := a.pool(cmd.Context())
			if err != nil {
				return err
			}
			defer pool.Close()
			var options []migrations.Option
			if without {
				options = append(options, migrations.WithoutExclusionRange())
			}
			status, err := readStatus(cmd.Context(), pool, options...)
			if err != nil {
				return err
			}
			if err := a.print(status, status.text()); err != nil {
				return err
			}
			if check && len(status.Pending)+len(status.Differs) > 0 {
				return exitPending
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&check, "check", false, "exit with 1 if something is pending or differs")
	cmd.Flags().BoolVar(&without, "without-exclusion-range", false,
		"do not count the strategy exclusion_range as pending")
	return cmd
}

type statusJSON struct {
	Version    int64                  `json:"version"` // the highest that is applied, 0 for none
	Migrations []migrations.Migration `json:"migrations"`
	Pending    []int64                `json:"pending"` // what "migrate up" would apply, in that order
	Differs    []string               `json:"differs"` // what is missing or not as this release makes it
	Memory     migrations.Memory      `json:"memory"`

	Distribution migrations.Distribution `json:"distribution,omitzero"` // by Citus
}

func readStatus(ctx context.Context, pool *pgxpool.Pool, options ...migrations.Option) (s statusJSON, err error) {
	if s.Migrations, err = migrations.Status(ctx, pool); err != nil {
		return s, err
	}
	for _, m := range s.Migrations {
		if m.Applied {
			s.Version = max(s.Version, m.Version)
		}
	}
	pending, err := migrations.Pending(ctx, pool, options...)
	if err != nil {
		return s, err
	}
	s.Pending, s.Differs = []int64{}, []string{}
	for _, m := range pending {
		s.Pending = append(s.Pending, m.Version)
	}
	differ, err := migrations.Differences(ctx, pool)
	if err != nil {
		return s, err
	}
	s.Differs = append(s.Differs, differ...)
	if s.Memory, err = migrations.ReadMemory(ctx, pool); err != nil {
		return s, err
	}
	s.Distribution, err = migrations.ReadDistribution(ctx, pool)
	return s, err
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
	text := columns([]string{"VERSION", "NAME", "STATE"}, rows)
	if len(s.Distribution.Tables) > 0 {
		text += "the tables are " + s.Distribution.String() + "\n"
	}
	if len(s.Differs) > 0 {
		const differs = " is missing or not as this release makes it\n"
		text += strings.Join(s.Differs, differs) + differs
	}
	if m := s.Memory; m.Short() {
		text += fmt.Sprintf("memory is short: the tables of the buckets have %s with their indexes, shared_buffers "+
			"are %s: see docs/memory.md\n",
			megabytes(m.Tables), megabytes(m.SharedBuffers))
	}
	return text
}

// megabytes formats bytes as Postgres does: 512MB of shared_buffers are 512 MB.
func megabytes(bytes int64) string { return strconv.FormatInt((bytes+1<<19)>>20, 10) + " MB" }
