package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pglimit/ratelimit/limits"
	"github.com/pglimit/ratelimit/pglimit"
)

const limitsOffLong = `Switch a limiter off, or --all: its services grant every request, without asking
Postgres, whatever other rules say, until "pglimit limits on" or --expires.
Without --expires it stays off, even when a switch with --expires ends.`

const limitsOnLong = `Switch on again a limiter that was switched off. With --all, all that were
switched off together; a limiter that was switched off by itself stays off.`

func newLimitsOffCommand(a *app, f *limitsFlags) *cobra.Command {
	cmd := f.switchCommand("off", "Switch a limiter off, or all: everything is granted", limitsOffLong,
		func(ctx context.Context, rule limits.Rule) error {
			return a.changeLimit(ctx, f, "set", "replaced", f.set(rule))
		})
	cmd.Example = lines(
		"pglimit limits off api --note \"the wrong limit went out\" --expires 1h",
		"pglimit limits off --all --note \"incident 12\"",
	)
	cmd.Flags().StringVar(&f.expires, "expires", "",
		"`WHEN` it goes on again: a time from now such as 1h, or a moment such as 2026-11-30T18:00:00Z")
	f.addDryRunTo(cmd)
	return cmd
}

func newLimitsOnCommand(a *app, f *limitsFlags) *cobra.Command {
	cmd := f.switchCommand("on", "Switch on again what was switched off", limitsOnLong,
		func(ctx context.Context, rule limits.Rule) error {
			missing := fmt.Errorf("%s was not switched off: \"pglimit limits explain LIMITER KEY\" says what holds",
				ruleWho(&rule))
			return a.changeLimit(ctx, f, "deleted", "", remove(rule, missing))
		})
	cmd.Example = lines("pglimit limits on --all --note \"incident 12 is over\"")
	return cmd
}

// switchCommand is a command about the rule that switches a limiter off, or all.
func (f *limitsFlags) switchCommand(name, short, long string, do func(context.Context, limits.Rule) error) *cobra.Command {
	all := false
	cmd := &cobra.Command{
		Use:   name + " LIMITER | --all --note WHY",
		Short: short,
		Long:  long,
		Args:  takes("[LIMITER]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			rule, err := f.offRule(cmd, args, all)
			if err != nil {
				return err
			}
			return do(cmd.Context(), rule)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "all limiters together")
	f.addWhyTo(cmd)
	return cmd
}

func (f *limitsFlags) offRule(cmd *cobra.Command, args []string, all bool) (limits.Rule, error) {
	rule := limits.Rule{Action: pglimit.ActionOff, Note: f.note, By: f.by}
	switch {
	case len(args) == 0 && !all:
		return rule, usagef(cmd, "%s needs a LIMITER, such as api, or --all", cmd.Name())
	case len(args) > 0 && all:
		return rule, usagef(cmd, "%s takes a LIMITER or --all, not both", cmd.Name())
	case len(args) > 0:
		rule.Limiter = args[0]
	}
	return rule, f.needsNote(cmd)
}
