package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglimit/ratelimit/pglimit"
)

const resetLong = `Fill a key's bucket: what it has used is forgotten.

Resetting a bucket that is full, or a key that was never seen, does nothing and
succeeds.`

func newResetCommand(a *app) *cobra.Command {
	var b bucketFlags
	cmd := &cobra.Command{
		Use:   "reset KEY",
		Short: "Fill a key's bucket",
		Long:  resetLong,
		Example: lines(
			"pglimit reset nightly-report",
			"pglimit reset user:42 --name api --strategy upsert",
		),
		Args:              oneKey,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			key := args[0]
			// A limiter wants a limit; a full bucket is full under any.
			err := b.ask(cmd.Context(), a, pglimit.Every(time.Second), func(ctx context.Context, limiter *pglimit.Limiter) error {
				return limiter.Reset(ctx, key)
			})
			if err != nil {
				return err
			}
			return a.print(struct {
				Limiter  string `json:"limiter"`
				Key      string `json:"key"`
				Strategy string `json:"strategy"`
				Reset    bool   `json:"reset"`
			}{b.limiter, key, b.strategy, true}, fmt.Sprintf("reset: the bucket of %q is full\n", key))
		},
	}
	b.addTo(cmd)
	return cmd
}
