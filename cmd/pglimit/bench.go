package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench"
)

const benchLong = `Put the strategies under load, one after another, and say how fast and how
exact each was.

Where no database is named it starts a Postgres of its own (from local binaries,
else with the docker command) and removes it at the end. A database that is named
must be migrated; the rows made in it are removed again. Mind that the load is
real: do not point it at a server that others depend on.

In a closed loop, the default, each caller waits for its answer before it asks
again: this shows how much the server can do. With --rps requests arrive on a
schedule, and latency counts from the scheduled time: this shows what users see,
also while the server stalls. --callers then limits how many requests are under
way at once; the others wait for their turn.

The library runs as in a service: it combines requests, remembers denials and, with
--leases, leases tokens. The report says what each of these stages did. With
--no-combining and --no-memory every request is a round trip: that compares the
strategies themselves. The statements of the write-up that pglimit began with
(--published) always run like that.

Decisions are audited by the database's own clock: all grants, and as many of the
denials as --audit has room for, drawn at random. A denial is checked against the
grants alone, so leaving denials out may hide a fault, but reports no false one.
  exact           no key was granted more than its limit in any span of time, and
                  every denial was due: the tokens were not there
  exact, sampled  the same, but only 1 denial in several was checked: the report
                  says in how many
  never over      no key was granted more than its limit. No denial could be judged:
                  there was none, all were contended, or leases had set tokens
                  aside, which are denied to others
  no fault seen   grants are missing: --audit had no room, or answers were lost

The tables are measured as they are stored: logged, unless "pglimit storage unlogged"
was run. --unlogged makes them unlogged on a throwaway server, and refuses a named
database whose tables are logged. The report says how each table was stored.

WAL and transaction ids are counted for the whole server, and deadlocks for the
database, so they include what others do there. Latencies are those of decisions, and
of requests that were given up while they waited; other errors are counted apart.

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
			"# the strategies themselves, each request a round trip of its own",
			"pglimit bench --no-combining --no-memory",
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
			return a.bench(cmd.Context(), config, cmd.Flags().Changed("strategies"), b.unlogged)
		},
	}
	b.addTo(cmd)
	return cmd
}

// bench runs the benchmark on the database that the user named, or on a throwaway server.
// named says that the user chose the strategies.
func (a *app) bench(ctx context.Context, config bench.Config, named, unlogged bool) (err error) {
	place, err := a.findBenchPlace(ctx, config.Instances*config.Conns)
	defer a.leave(place, &err)
	if err != nil {
		return err
	}
	if config.Strategies, err = a.benchStrategies(ctx, place, config.Strategies, named); err != nil {
		return err
	}
	if unlogged {
		if err := a.makeUnlogged(ctx, place, config.Strategies); err != nil {
			return err
		}
	}
	report, err := bench.Run(ctx, place.database, place.source, config, newBenchProgress(a.stderr))
	if err != nil && len(report.Runs) == 0 {
		return err
	}
	if printed := a.printBench(report); printed != nil {
		return errors.Join(printed, err)
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

// say tells a person on stderr what is going on.
func (a *app) say(what string) {
	fmt.Fprintln(a.stderr, "pglimit: "+what) //nolint:errcheck // nobody is left to tell
}
