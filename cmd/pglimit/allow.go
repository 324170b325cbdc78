package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pglimit/ratelimit/pglimit"
)

const allowLong = `Take tokens of a key's bucket, if they are there.

The answer is the exit code: 0 allowed, 1 denied, 2 no decision (stderr says
why). A denial takes nothing and writes nothing. Any number of machines may ask
at once; the same key, --limiter and --strategy mean the same bucket for all of
them, and the services that use that limiter share it too. With the strategy
for_update_nowait, denied can also mean that another request was being decided.`

func newAllowCommand(a *app) *cobra.Command {
	var b bucketFlags
	var cost int64
	var quiet bool
	cmd := &cobra.Command{
		Use:   "allow KEY --limit TOKENS/PERIOD",
		Short: "Take tokens: exit 0 if allowed, 1 if denied",
		Long:  allowLong,
		Example: lines(
			"# at most one report in ten minutes, from whatever machine",
			"pglimit allow nightly-report --limit 1/10m && ./report.sh",
			"",
			"# skip if denied, go ahead if the database is down",
			"pglimit allow \"mail:$USER\" --limit 20/1h --quiet",
			"case $? in 1) echo 'too many mails' ;; *) send-mail ;; esac",
			"",
			"# five tokens at once, and the details for a program",
			"pglimit allow import --limit \"100/1m burst 20\" --cost 5 --output json",
		),
		Args:              oneKey,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			key := args[0]
			limit, err := b.parseLimit(cmd)
			if err != nil {
				return inFlags(err)
			}
			if cost < 1 {
				return fmt.Errorf("--cost is %d: it must be at least 1; \"pglimit peek\" looks without taking", cost)
			}
			var d pglimit.Decision
			err = b.ask(cmd.Context(), a, limit, func(ctx context.Context, limiter *pglimit.Limiter) error {
				d, err = limiter.AllowN(ctx, key, cost)
				return err
			})
			if err != nil {
				return err
			}
			if !quiet {
				if err := a.print(newDecisionJSON(&b, key, limit, cost, d), allowText(limit, d)+"\n"); err != nil {
					return err
				}
			}
			if !d.Allowed {
				return exitDenied
			}
			return nil
		},
	}
	b.addLimitTo(cmd)
	cmd.Flags().Int64Var(&cost, "cost", 1, "`TOKENS` to take, all or none")
	noFiles(cmd, "cost")
	b.addTo(cmd)
	b.addDurabilityTo(cmd)
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print nothing: the exit code is the answer")
	return cmd
}
