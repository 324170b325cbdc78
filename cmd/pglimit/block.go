package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// blockFlags say when a key that is denied is blocked, and for how long.
type blockFlags struct{ pglimit.Block }

func (b *blockFlags) addTo(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.Int64Var(&b.After, "block-after", 0, "block the key after this many `DENIALS`; 0 never does")
	flags.DurationVar(&b.Within, "block-within", time.Minute, "`TIME` in which those denials count together")
	flags.DurationVar(&b.For, "block-for", time.Minute,
		"`TIME` of the first block; each further one lasts twice as long")
	flags.DurationVar(&b.Max, "block-max", 24*time.Hour, "longest `TIME` of a block")
	flags.DurationVar(&b.Forget, "block-forget", 24*time.Hour,
		"`TIME` without a block after which the next is a first one")
}

// check checks the flags together with those of one key.
func (b *blockFlags) check(cmd *cobra.Command, f *allowFlags, limits int) error {
	if b.After == 0 {
		for _, name := range []string{"block-within", "block-for", "block-max", "block-forget"} {
			if cmd.Flags().Changed(name) {
				return usagef(cmd, "allow takes --%s only with --block-after", name)
			}
		}
		b.Block = pglimit.Block{}
		return nil
	}
	switch {
	case b.After < 0:
		return fmt.Errorf("--block-after is %d: it must not be negative; 0 never blocks", b.After)
	case limits > 1:
		return usagef(cmd, "allow takes --block-after with one --limit, and here are %d: ask with --block-after "+
			"first and, if it is allowed, a second time for the others", limits)
	case f.wait > 0:
		return usagef(cmd, "allow takes --block-after without --wait: leave --wait out, and ask again after the time "+
			"that the answer says")
	case f.id != "":
		return usagef(cmd, "allow takes --block-after without --id: leave --id out (what is sent again is charged "+
			"again), or use another --limiter")
	case f.strategy != (strategies.TokenBucket{}).Name():
		return usagef(cmd, "allow takes --block-after with --strategy %s only, not %s",
			(strategies.TokenBucket{}).Name(), f.strategy)
	}
	return inFlags(b.Validate())
}

// anyBlock makes a strategy that supports blocks look for one. A look counts no denials, so the number does not matter.
func anyBlock(strategy string) pglimit.Block {
	if strategy != (strategies.TokenBucket{}).Name() {
		return pglimit.Block{}
	}
	return pglimit.Block{After: 1, Within: 1, For: pglimit.MaxBlock, Max: pglimit.MaxBlock}
}

// inBlockFlags explains a Block's error in terms of the flags.
func inBlockFlags(err *pglimit.BlockError) string {
	return "--block-" + strings.ToLower(err.Field) + " " + strings.Replace(err.Why, "from For,", "from --block-for,", 1)
}
