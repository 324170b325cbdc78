package main

import (
	"context"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/pglimit/ratelimit/migrations"
)

const storageLong = `Say how Postgres keeps the tables of the buckets, or keep them as given.

Unlogged tables write no WAL for their rows, which makes grants faster. The
price is that of a Redis without persistence: after a crash of the server, and
on a replica, every bucket is full, and --durability durable waits for nothing.

The tables are rewritten in one transaction, which takes some seconds for a
million buckets. No bucket is forgotten, and nobody can use the tables
meanwhile. If another transaction holds one of them for more than a second,
the command lets the others go on and tries again, until it succeeds or Ctrl-C
ends it. Only the owner of the tables may do this. Tables that a later
migration adds are logged: run it again then.`

func newStorageCommand(a *app) *cobra.Command {
	kinds := []string{string(migrations.Logged), string(migrations.Unlogged)}
	return &cobra.Command{
		Use:   "storage [logged | unlogged]",
		Short: "Keep the buckets in logged or in unlogged tables",
		Long:  storageLong,
		Example: lines(
			"pglimit storage",
			"pglimit storage unlogged",
			"pglimit storage --output json | jq -r '.tables[].storage'",
		),
		ValidArgs: kinds,
		Args:      cobra.MatchAll(cobra.MaximumNArgs(1), cobra.OnlyValidArgs),
		RunE:      func(cmd *cobra.Command, args []string) error { return a.storage(cmd.Context(), args) },
	}
}

// storage changes the storage to what is wanted, if anything is, and prints what it is then.
func (a *app) storage(ctx context.Context, wanted []string) error {
	pool, err := a.pool(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	for _, kind := range wanted {
		// A user who waits is told for what.
		log := migrations.WithLogger(a.logger(slog.LevelWarn))
		if err := migrations.SetStorage(ctx, pool, migrations.Storage(kind), log); err != nil {
			return err
		}
	}
	tables, err := migrations.ReadStorage(ctx, pool)
	if err != nil {
		return err
	}
	var out struct {
		Tables []migrations.TableStorage `json:"tables"`
	}
	out.Tables = tables
	var rows [][]string
	for _, t := range tables {
		rows = append(rows, []string{t.Table, string(t.Storage)})
	}
	return a.print(out, columns([]string{"TABLE", "STORAGE"}, rows))
}
