package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench"
	"github.com/pglimit/ratelimit/internal/pgserver"
	"github.com/pglimit/ratelimit/migrations"
)

const benchLong = `Put the strategies under load, one after another, and say how fast and how
exact each was.

Where no database is named it starts a Postgres of its own (from local binaries,
else with the docker command) and removes it at the end. A database that is named
must be migrated; the rows made in it are removed again. Mind that the load is
real: do not point it at a server that others depend on.

In a closed loop each caller waits for its answer before it asks again: how much
the server can do. With --rps requests arrive on schedule, and latency counts
from the scheduled time: what users see, also while the server stalls. Then
--callers bounds how many are under way at once; the others wait their turn.

Every decision is audited by the database's own clock: "exact" means that no
key was granted more than its limit in any span of time, and that every denial
was due. WAL, transaction ids and deadlocks are the server's, so they include what
others do there.

Exit codes: 0 no strategy granted too much, 1 one did, 2 failed, 130 ended by
Ctrl-C (what was measured so far is printed).`

func newBenchCommand(a *app) *cobra.Command {
	b := newBenchFlags()
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Compare the strategies under load, for speed and exactness",
		Long:  benchLong,
		Example: lines(
			"# all four, on a throwaway server, in less than a minute",
			"pglimit bench",
			"",
			"# one strategy, many keys of which a few are hot, two instances",
			"pglimit bench --strategies token_bucket --keys 100000 --distribution zipf --instances 2",
			"",
			"# what users see at 5,000 requests per second",
			"pglimit bench --rps 5000 --keys 1000",
			"",
			"# the write-up's statements beside ours, at one request per key and 200 ms",
			"pglimit bench --published --limit 1/200ms --keys 1 --durability durable",
		),
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := b.config(cmd)
			if err != nil {
				return usagef(cmd, "%v", err)
			}
			return a.bench(cmd.Context(), config)
		},
	}
	b.addTo(cmd)
	return cmd
}

// bench runs it on the database that is named, or on a throwaway server.
func (a *app) bench(ctx context.Context, config bench.Config) (err error) {
	database, source, stop, err := a.benchDatabase(ctx, config.Instances*config.Conns)
	if err != nil {
		return err
	}
	defer func() {
		if failed := stop(); failed != nil && err == nil {
			err = failed
		}
	}()
	report, err := bench.Run(ctx, database, source, config, newBenchProgress(a.stderr))
	if err != nil && len(report.Runs) == 0 {
		return err
	}
	if printed := a.printBench(report); printed != nil {
		return printed
	}
	if err == nil && report.Interrupted {
		err = ctx.Err()
	}
	if err == nil && len(report.OverAdmitted()) > 0 {
		err = exitDenied // the report says which strategy, and by how much
	}
	return err
}

func (a *app) printBench(report bench.Report) error {
	if a.output == outputJSON {
		return report.WriteJSON(a.stdout)
	}
	return report.WriteTable(a.stdout)
}

// benchDatabase is where to run: what the user named, or else a server that stop
// removes, migrated.
func (a *app) benchDatabase(ctx context.Context, connections int) (database *pgxpool.Config, source string, stop func() error, err error) {
	if a.hasDatabase() {
		_, source := a.connString()
		pool, err := a.pool(ctx) // says well what is wrong if it cannot be reached
		if err != nil {
			return nil, "", nil, err
		}
		pool.Close()
		database, err := a.poolConfig()
		return database, "the database of " + source, func() error { return nil }, err
	}
	a.say("no database is named (--database-url, DATABASE_URL, PG*): starting a throwaway Postgres")
	// Postgres's defaults, but for room for the connections, ours and reserved ones.
	settings := map[string]string{"max_connections": strconv.Itoa(max(100, connections+20))}
	server, err := pgserver.Start(ctx, pgserver.Options{Settings: settings})
	if err != nil {
		return nil, "", nil, fmt.Errorf("no throwaway Postgres: %w (or name a database with --database-url)", err)
	}
	a.say("started " + server.Describe())
	stop = func() error {
		err := server.Stop()
		if err == nil {
			a.say("removed the throwaway Postgres")
		}
		return err
	}
	if database, err = migrated(ctx, server.URL("postgres")); err != nil {
		return nil, "", nil, errors.Join(err, stop())
	}
	return database, server.Describe(), stop, nil
}

// migrated database at the URL.
func migrated(ctx context.Context, url string) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.NewWithConfig(ctx, config.Copy())
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	return config, migrations.Up(ctx, pool)
}

// say tells a person what is going on, apart from the result.
func (a *app) say(what string) {
	fmt.Fprintln(a.stderr, "pglimit: "+what) //nolint:errcheck // nobody is left to tell
}
