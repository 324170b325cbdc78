package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pglimit/ratelimit/limits"
	"github.com/pglimit/ratelimit/pglimit"
)

const limitsOffLong = `Switch a limiter off, or --all: its services grant every request, without asking
Postgres, whatever other rules say, until "pglimit limits on" or --expires.
Without --expires it stays off, even when a switch with --expires ends.`

func newLimitsOffCommand(a *app, f *limitsFlags) *cobra.Command {
	all := false
	cmd := &cobra.Command{
		Use:   "off LIMITER | --all --note WHY",
		Short: "Switch a limiter off, or all: everything is granted",
		Long:  limitsOffLong,
		Example: lines(
			"pglimit limits off api --note \"the wrong limit went out\" --expires 1h",
			"pglimit limits off --all --note \"incident 12\"",
		),
		Args: takes("[LIMITER]"),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		rule, err := f.offRule(cmd, args, all)
		if err != nil {
			return err
		}
		return a.changeLimit(cmd.Context(), f, "set", "replaced", f.set(rule))
	}
	cmd.Flags().BoolVar(&all, "all", false, "switch off all limiters")
	cmd.Flags().StringVar(&f.expires, "expires", "",
		"`WHEN` it goes on again: a time from now such as 1h, or a moment such as 2026-11-30T18:00:00Z")
	f.addWhyTo(cmd)
	f.addDryRunTo(cmd)
	return cmd
}

func newLimitsOnCommand(a *app, f *limitsFlags) *cobra.Command {
	all := false
	cmd := &cobra.Command{
		Use:   "on LIMITER | --all --note WHY",
		Short: "Switch on again what was switched off",
		Long: "Switch on again a limiter that was switched off. With --all, all that were\n" +
			"switched off together; a limiter that was switched off by itself stays off.",
		Example: lines(
			"pglimit limits on api --note \"the limit is right now\"",
			"pglimit limits on --all --note \"incident 12 is over\"",
		),
		Args: takes("[LIMITER]"),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		rule, err := f.offRule(cmd, args, all)
		if err != nil {
			return err
		}
		missing := fmt.Errorf("%s was not switched off: \"pglimit limits explain LIMITER KEY\" says what holds",
			ruleWho(&rule))
		return a.changeLimit(cmd.Context(), f, "deleted", "", remove(rule, missing))
	}
	cmd.Flags().BoolVar(&all, "all", false, "what was switched off with --all")
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
