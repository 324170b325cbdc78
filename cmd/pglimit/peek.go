package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/serve"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

const peekLong = `Look at a key's bucket and take nothing.

The limit must be given because the bucket stores what was used, not what is
allowed. The exit code is 0 whether or not tokens are there: to branch on the
answer use "pglimit allow", because tokens seen here may be gone by then.

It also shows for how long the key is blocked, if it is; "pglimit reset" ends
that.`

func newPeekCommand(a *app) *cobra.Command {
	var b bucketFlags
	cmd := &cobra.Command{
		Use:   "peek KEY --limit TOKENS/PERIOD",
		Short: "Look how full a key's bucket is",
		Long:  peekLong,
		Example: lines(
			"pglimit peek user:42 --limit 100/1m --limiter api",
			"pglimit peek nightly-report --limit 1/10m --output json | jq .retry_after_ms",
		),
		Args: takes("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			key := args[0]
			limits, err := b.parseLimits(cmd, false)
			if err != nil {
				return inFlags(err)
			}
			var d pglimit.Decision
			config := pglimit.Config{Limit: limits[0]}
			if b.strategy == (strategies.TokenBucket{}).Name() {
				// Any block makes it look for one. A look counts no denials, so the numbers do not matter.
				config.Block = pglimit.Block{After: 1, Within: 1, For: pglimit.MaxBlock, Max: pglimit.MaxBlock}
			}
			err = b.ask(cmd.Context(), a, config,
				func(ctx context.Context, limiter *pglimit.Limiter) error {
					d, err = limiter.Peek(ctx, key)
					return err
				})
			if err != nil {
				return err
			}
			return a.print(serve.NewDecision(d), bucketText(limits[0], d)+"\n")
		},
	}
	b.addLimitTo(cmd)
	b.addTo(cmd)
	return cmd
}
