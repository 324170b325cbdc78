package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

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
			list, err := migrations.Status(cmd.Context(), pool)
			if err != nil {
				return err
			}
			var options []migrations.Option
			if without {
				options = append(options, migrations.WithoutExclusionRange())
			}
			pending, err := migrations.Pending(cmd.Context(), pool, options...)
			if err != nil {
				return err
			}
			differ, err := migrations.Differences(cmd.Context(), pool)
			if err != nil {
				return err
			}
			memory, err := migrations.ReadMemory(cmd.Context(), pool)
			if err != nil {
				return err
			}
			distribution, err := migrations.ReadDistribution(cmd.Context(), pool)
			if err != nil {
				return err
			}
			status := newStatusJSON(list, pending, differ, memory, distribution)
			if err := a.print(status, status.text()); err != nil {
				return err
			}
			if check && len(pending)+len(differ) > 0 {
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
	Version    int64           `json:"version"` // the highest that is applied, 0 for none
	Migrations []migrationJSON `json:"migrations"`
	Pending    []int64         `json:"pending"` // what "migrate up" would apply, in that order
	Differs    []string        `json:"differs"` // what is missing or not as this release makes it
	Memory     memoryJSON      `json:"memory"`

	Distribution *distributionJSON `json:"distribution,omitempty"` // by Citus; absent if the tables are not distributed
	distributed  string
}

// memoryJSON has the fields of migrations.Memory.
type memoryJSON struct {
	Tables        int64 `json:"tables_bytes"`
	SharedBuffers int64 `json:"shared_buffers_bytes"`
	Short         bool  `json:"short"`
}

func newStatusJSON(list, pending []migrations.Migration, differ []string, memory migrations.Memory,
	d migrations.Distribution) statusJSON {
	out := statusJSON{
		Migrations: []migrationJSON{}, Pending: []int64{}, Differs: append([]string{}, differ...),
		Memory: memoryJSON{memory.Tables, memory.SharedBuffers, memory.Short()},
	}
	if len(d.Tables) > 0 {
		distributed := newDistributionJSON(d)
		out.Distribution, out.distributed = &distributed, "the tables are "+d.String()+"\n"
	}
	for _, m := range pending {
		out.Pending = append(out.Pending, m.Version)
	}
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
	text := columns([]string{"VERSION", "NAME", "STATE"}, rows) + s.distributed
	if len(s.Differs) > 0 {
		const differs = " is missing or not as this release makes it\n"
		text += strings.Join(s.Differs, differs) + differs
	}
	if m := s.Memory; m.Short {
		text += fmt.Sprintf("memory is short: the tables of the buckets have %s with their indexes, shared_buffers "+
			"are %s: see docs/memory.md\n",
			megabytes(m.Tables), megabytes(m.SharedBuffers))
	}
	return text
}

// megabytes formats bytes as Postgres does: 512MB of shared_buffers are 512 MB.
func megabytes(bytes int64) string { return strconv.FormatInt((bytes+1<<19)>>20, 10) + " MB" }
