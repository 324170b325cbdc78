package main

import (
	"github.com/spf13/cobra"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/compare"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/text"
)

const benchCompareLong = `Compare two runs of "pglimit bench --output json": for each strategy under
each load that both have, the figures of both, their ratio, how far
repetitions lie apart, and which differences are noise. Without repetitions
(--repeat) a small difference cannot be told from noise.

It says what else differed: parameters, server, machine.

Exit codes: 0 compared, 2 failed.`

func newBenchCompareCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "compare OLD.json NEW.json",
		Short: "Compare two runs, and say what is noise",
		Long:  benchCompareLong,
		Example: lines(
			"pglimit bench --repeat 3 --output json > before.json",
			"pglimit bench --repeat 3 --output json > after.json",
			"pglimit bench compare before.json after.json",
		),
		Args:              takes("OLD.json", "NEW.json"),
		ValidArgsFunction: cobra.FixedCompletions([]string{"json"}, cobra.ShellCompDirectiveFilterFileExt),
		RunE: func(_ *cobra.Command, args []string) error {
			before, err := result.ReadFile(args[0])
			if err != nil {
				return err
			}
			after, err := result.ReadFile(args[1])
			if err != nil {
				return err
			}
			c, err := compare.Reports(before, after)
			if err != nil {
				return err
			}
			return a.print(c, text.Compare(c))
		},
	}
}
