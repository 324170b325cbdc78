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

In a closed loop each caller waits for its answer before it asks again: how much
the server can do. With --rps requests arrive on schedule, and latency counts
from the scheduled time: what users see, also while the server stalls. Then
--callers bounds how many are under way at once; the others wait their turn.

What runs is the library as it is: between callers and strategy it combines requests
and remembers denials, on request it also leases tokens, and the report says what
each of these stages did. With --no-combining and --no-memory every request is a
round trip: that compares the strategies themselves. The write-up's statements
(--published) always run like that.

Decisions are audited by the database's own clock: all grants, and as many of the
denials as --audit has room for, drawn at random. A denial is held against the grants
alone, so leaving some out may hide a fault, but invents none.
  exact           no key was granted more than its limit in any span of time, and
                  every denial was due
  exact, sampled  the same, of 1 denial out of several: the report says of how many
  never over      no denial could be judged: there was none, all were contended, or
                  leases had set tokens aside, which are denied to others
  no fault seen   grants are missing: --audit had no room, or answers were lost

The tables are measured as they are stored: logged, unless "pglimit storage unlogged"
was run; --unlogged sees to that on a throwaway server, and refuses a named database
that has it otherwise. The report says which it was.

WAL, transaction ids and deadlocks are the server's, so they include what others do
there. Latencies are those of decisions, and of requests that were given up while
they waited; other errors are counted apart.

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

// bench runs it on the database that is named, or on a throwaway server. named: the
// user chose the strategies.
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

// say tells a person what is going on, apart from the result.
func (a *app) say(what string) {
	fmt.Fprintln(a.stderr, "pglimit: "+what) //nolint:errcheck // nobody is left to tell
}
