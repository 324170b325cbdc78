package main

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/pglimit/ratelimit/migrations"
)

const storageLong = `Say or change how Postgres keeps the tables of the buckets.

Unlogged tables write no WAL for their rows, which makes grants faster. The
price is that of a Redis without persistence:

  - after a crash of the server the tables are empty, so every bucket is full
    (after a clean restart they are as they were)
  - replicas get nothing: a read on a standby fails, and after a failover every
    bucket is full
  - --durability durable waits for nothing there

The schedule of the cleanup and the record of what is migrated stay logged.`

func newStorageCommand(a *app) *cobra.Command {
	return group(&cobra.Command{
		Use:   "storage",
		Short: "Keep the buckets in logged or in unlogged tables",
		Long:  storageLong,
		Example: lines(
			"pglimit storage status",
			"pglimit storage unlogged",
			"pglimit storage logged",
		),
	}, newStorageStatusCommand(a), newStorageSetCommand(a, migrations.Unlogged), newStorageSetCommand(a, migrations.Logged))
}

func newStorageStatusCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "status",
		Short:   "Say how each table is kept",
		Long:    "Say how each table of buckets is kept. It only reads.",
		Example: lines("pglimit storage status --output json | jq -r '.tables[].storage'"),
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.storage(cmd.Context(), "") },
	}
}

const storageSetLong = `%s

The tables are rewritten in one transaction, which takes some seconds for a
million buckets. No bucket is forgotten, and nobody can use the tables
meanwhile. If another transaction holds one of them for more than a second,
the command lets the others go on and tries again, until it succeeds or Ctrl-C
ends it. Only the owner of the tables may do this.

Tables that a later migration adds are logged: run it again then.`

func newStorageSetCommand(a *app, storage migrations.Storage) *cobra.Command {
	short, first := "Write every change to the WAL", "Keep the buckets in logged tables, as they are from the start."
	if storage == migrations.Unlogged {
		short = "Write no WAL: faster, and empty after a crash"
		first = "Keep the buckets in unlogged tables: they write no WAL, they are empty after a\n" +
			"crash of the server, and replicas do not have them\n(see \"pglimit storage --help\")."
	}
	return &cobra.Command{
		Use:     string(storage),
		Short:   short,
		Long:    fmt.Sprintf(storageSetLong, first),
		Example: lines("pglimit storage " + string(storage)),
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.storage(cmd.Context(), storage) },
	}
}

// storage changes the storage to set, unless that is empty, and prints the result.
func (a *app) storage(ctx context.Context, set migrations.Storage) error {
	pool, err := a.pool(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	if set != "" {
		// A user who waits is told for what.
		log := slog.New(slog.NewTextHandler(a.stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
		if err := migrations.SetStorage(ctx, pool, set, migrations.WithLogger(log)); err != nil {
			return err
		}
	}
	tables, err := migrations.ReadStorage(ctx, pool)
	if err != nil {
		return err
	}
	out := struct {
		Tables []tableStorageJSON `json:"tables"`
	}{}
	var rows [][]string
	for _, t := range tables {
		out.Tables = append(out.Tables, tableStorageJSON{t.Table, string(t.Storage)})
		rows = append(rows, []string{t.Table, string(t.Storage)})
	}
	return a.print(out, columns([]string{"TABLE", "STORAGE"}, rows))
}

type tableStorageJSON struct {
	Table   string `json:"table"`
	Storage string `json:"storage"` // logged or unlogged
}
