package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/serve"
	"github.com/pglimit/ratelimit/limits"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

const peekLong = `Look at a key's bucket and take nothing.

The bucket stores what was used, not what is allowed. So without --limit, the
limit is that of the rule in the table pglimit.limits, which "pglimit limits"
changes. A limit that only the service knows must be given.

The exit code is 0 whether or not tokens are there: to branch on the answer use
"pglimit allow", because tokens seen here may be gone by then.

It also shows for how long the key is blocked, if it is; "pglimit reset" ends
that.`

func newPeekCommand(a *app) *cobra.Command {
	var b bucketFlags
	cmd := &cobra.Command{
		Use:   "peek KEY [--limit TOKENS/PERIOD]",
		Short: "Look how full a key's bucket is",
		Long:  peekLong,
		Example: lines(
			"pglimit peek user:42 --limiter api",
			"pglimit peek user:42 --limiter api --limit 100/1m",
			"pglimit peek nightly-report --limit 1/10m --output json | jq .retry_after_ms",
		),
		Args: takes("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			key := args[0]
			limit, err := b.limitOrRule(cmd, a, key)
			if err != nil {
				return inFlags(err)
			}
			var d pglimit.Decision
			config := pglimit.Config{Limit: limit}
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
			return a.print(serve.NewDecision(d), bucketText(limit, d)+"\n")
		},
	}
	b.addLimitTo(cmd, "default: that of the rule in pglimit.limits")
	b.addTo(cmd)
	return cmd
}

// limitOrRule returns --limit, or without it the limit of the rule that decides for the key.
func (b *bucketFlags) limitOrRule(cmd *cobra.Command, a *app, key string) (limit pglimit.Limit, err error) {
	if len(b.limits) > 0 {
		given, err := b.parseLimits(cmd, false)
		if err != nil {
			return limit, err
		}
		return given[0], nil
	}
	f := limitsFlags{timeout: b.timeout}
	err = f.on(cmd.Context(), a, func(ctx context.Context, table *limits.Table) error {
		rules, err := table.Explain(ctx, b.limiter, key)
		for i := range rules {
			r := &rules[i]
			switch {
			case r.Action == pglimit.ActionObserve || r.Action == pglimit.ActionPlaces:
			case r.State == limits.Fails:
				return fmt.Errorf("the rule %s fails each request: %s", ruleText(&r.Rule), r.Why)
			case r.State == limits.Holds && r.Limit == "":
				return fmt.Errorf("no limit applies to the key: give a --limit to look at its bucket. The rule is %s",
					ruleText(&r.Rule))
			case r.State == limits.Holds:
				limit, err = pglimit.ParseLimit(r.Limit)
				return err
			}
		}
		if err == nil {
			err = fmt.Errorf("no --limit is given, and pglimit.limits has none for limiter %s and key %s: give the "+
				"service's limit, such as --limit 100/1m", word(b.limiter), word(key))
		}
		return err
	})
	return limit, err
}
