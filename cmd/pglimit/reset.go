package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglimit/ratelimit/pglimit"
)

const resetLong = `Fill a key's bucket: what it has used is forgotten, and a block of the key ends.
With --all, fill the buckets of all keys of a limiter. A bucket that is full
stays so. What "allow" took with several --limit has a limiter each: --limiter
"cli 1/1m".

--all reads the whole table in short steps, removes the rows of the limiter
and says how many there were. Rows that somebody holds locked come last, and
it waits for those. It does not ask whether you are sure, and has no time
limit unless --timeout is given. If it is stopped, the error says how many rows
it has removed.

A process that remembers a denial may go on denying the key: for its
Memory.TTL at most, which is a second by default.`

func newResetCommand(a *app) *cobra.Command {
	var b bucketFlags
	all := false
	cmd := &cobra.Command{
		Use:   "reset KEY | --all --limiter NAME",
		Short: "Fill a key's bucket, or those of all keys",
		Long:  resetLong,
		Example: lines(
			"pglimit reset nightly-report",
			"pglimit reset user:42 --limiter api --strategy upsert",
			"pglimit reset --all --limiter api",
		),
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case !all && len(args) == 0:
				return usagef(cmd, "reset needs a KEY, such as user:42, or --all with --limiter NAME")
			case !all:
				return takes("KEY")(cmd, args)
			case len(args) > 0:
				return usagef(cmd, "reset takes either a KEY or --all, not both: the KEY is %q", args[0])
			case !cmd.Flags().Changed("limiter"):
				return usagef(cmd, "reset --all needs --limiter NAME: the limiter whose keys are to be reset")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if !all {
				return a.resetKey(cmd.Context(), &b, args[0])
			}
			if !cmd.Flags().Changed("timeout") {
				b.timeout = 0 // how long it takes depends on the table
			}
			return a.resetAll(cmd.Context(), &b)
		},
	}
	b.addTo(cmd)
	cmd.Flags().BoolVar(&all, "all", false, "fill the buckets of all keys of --limiter")
	return cmd
}

// anyLimit is a placeholder: a limiter needs a limit, and a full bucket is full under any limit.
var anyLimit = pglimit.Every(time.Second)

func (a *app) resetKey(ctx context.Context, b *bucketFlags, key string) error {
	err := b.ask(ctx, a, pglimit.Config{Limit: anyLimit}, func(ctx context.Context, limiter *pglimit.Limiter) error {
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
	}{b.limiter, key, b.strategy, true}, fmt.Sprintf("reset: the bucket of %q is full (limiter %q)\n", key, b.limiter))
}

func (a *app) resetAll(ctx context.Context, b *bucketFlags) error {
	var removed int64
	config := pglimit.Config{Limit: anyLimit}
	err := b.ask(ctx, a, config, func(ctx context.Context, limiter *pglimit.Limiter) (err error) {
		removed, err = limiter.ResetAll(ctx)
		return err
	})
	if err != nil && removed > 0 {
		err = fmt.Errorf("%s of limiter %q removed, and others may be left: %w", plural(removed, "row", "rows"),
			b.limiter, err)
	}
	if err != nil {
		return err
	}
	return a.print(struct {
		Limiter  string `json:"limiter"`
		Strategy string `json:"strategy"`
		// rows: one per bucket that had been taken from; of exclusion_range, one per grant
		Removed int64 `json:"removed"`
	}{b.limiter, b.strategy, removed},
		fmt.Sprintf("reset: every bucket of limiter %q is full (%s removed)\n", b.limiter,
			plural(removed, "row", "rows")))
}
