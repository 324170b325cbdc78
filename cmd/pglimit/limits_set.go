package main

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglimit/ratelimit/limits"
	"github.com/pglimit/ratelimit/pglimit"
)

const limitsSetLong = `Set the rule for a KEY of a limiter, for the keys that begin with --prefix, or
for all its keys, and print what it replaced. What was used under the former
limit stays used.

  enforce  grant what --limit grants
  observe  count what --limit would deny, and deny nothing; there can be one
           beside each other rule
  allow    grant everything, without asking Postgres
  deny     deny everything, without asking Postgres
  places   the semaphore of this name has --limit places, such as 5, for each
           key; there can be one beside each other rule. Nobody loses a place

A rule with --expires is temporary: it covers the permanent rule for the same
keys until it ends, by the database's clock. "set" without --expires sets the
permanent one; to have that apply at once, delete the temporary one. --dry-run
changes nothing, and says to how many known buckets (with places: keys of the
semaphore) the rule would apply; it reads the tables of the buckets.`

type limitsSetFlags struct {
	*limitsFlags
	limit   string
	action  string
	maxWait string
}

func newLimitsSetCommand(a *app, shared *limitsFlags) *cobra.Command {
	f := limitsSetFlags{limitsFlags: shared, action: pglimit.ActionEnforce.String()}
	cmd := &cobra.Command{
		Use:   "set LIMITER [KEY] --limit TOKENS/PERIOD --note WHY",
		Short: "Set a limit, and print what it replaced",
		Long:  limitsSetLong,
		Example: lines(
			"pglimit limits set api --limit 100/1m --note \"the default\"",
			"pglimit limits set api user:42 --limit 500/1m --note \"ticket 7\" --expires 24h",
			"pglimit limits set api --prefix bot: --action deny --note scraping --dry-run",
			"pglimit limits set api --limit 60/1m --action observe --note \"would this do?\"",
			"pglimit limits set imports --limit 5 --action places --note \"the default\"",
		),
		Args: takes("LIMITER", "[KEY]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			rule, err := f.rule(cmd, args)
			if err != nil {
				return err
			}
			return a.setLimit(cmd.Context(), &f, rule)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.limit, "limit", "",
		"how much is allowed: `TOKENS/PERIOD`, such as 1/10m, 100/s or \"100/1m burst 20\"; a number with places")
	choiceVar(cmd, flags, &f.action, "action", "`ACTION` of the rule", "enforce", "observe", "allow", "deny", "places")
	f.addRuleTo(cmd)
	flags.StringVar(&f.maxWait, "max-wait", "",
		"longest `TIME` that callers of Wait may wait: 30s, or a share of the period such as 50%")
	flags.StringVar(&f.expires, "expires", "",
		"`WHEN` the rule ends: a time from now such as 24h or 7day, or a moment such as 2026-11-30T18:00:00Z")
	f.addWhyTo(cmd)
	f.addDryRunTo(cmd)
	return cmd
}

func (a *app) setLimit(ctx context.Context, f *limitsSetFlags, rule limits.Rule) error {
	if err := rule.Action.UnmarshalText([]byte(f.action)); err != nil {
		return err
	}
	rule.Limit, rule.MaxWait = f.limit, f.maxWait
	such := "100/1m"
	switch rule.Action {
	case pglimit.ActionPlaces:
		such = "5"
	case pglimit.ActionAllow, pglimit.ActionDeny:
		such = ""
	}
	if such != "" && f.limit == "" {
		return fmt.Errorf("%s needs a --limit, such as --limit %s", rule.Action, such)
	} else if such == "" && f.limit != "" {
		return fmt.Errorf("%s takes no --limit", rule.Action)
	}
	return a.changeLimit(ctx, f.limitsFlags, "set", "replaced", f.set(rule))
}

// change changes a rule. Nil: there was none before, or there is none after.
type change func(context.Context, *limits.Table) (limits.Change, error)

// set sets the rule, until --expires. With --dry-run it only says what that would change.
func (f *limitsFlags) set(rule limits.Rule) change {
	return func(ctx context.Context, table *limits.Table) (c limits.Change, err error) {
		if rule.Expires, err = f.expiry(ctx, table); err != nil {
			return c, err
		}
		c.After = &rule
		if !f.dryRun {
			c.Before, err = table.Set(ctx, rule)
			return c, err
		}
		changed, err := table.Import(ctx, []limits.Rule{rule}, limits.ImportConfig{By: f.by, DryRun: true})
		switch {
		case err != nil:
		case len(changed) == 0:
			c.Before = &rule
		default:
			c.Before = changed[0].Before
		}
		return c, err
	}
}

// remove deletes the rule, or fails with missing if there is none.
func remove(rule limits.Rule, missing error) change {
	return func(ctx context.Context, table *limits.Table) (c limits.Change, err error) {
		if c.Before, err = table.Delete(ctx, rule); err == nil && c.Before == nil {
			err = missing
		}
		return c, err
	}
}

// changeLimit makes a change and prints it. did describes the new state, and beside the old one, such as "replaced".
func (a *app) changeLimit(ctx context.Context, f *limitsFlags, did, beside string, change change) error {
	var out struct {
		limits.Change
		Other     *limits.Rule      `json:"other,omitempty"` // the temporary rule over it, or the permanent one under it
		Followers *limits.Followers `json:"followers,omitempty"`
		DryRun    bool              `json:"dry_run,omitempty"`
		Buckets   *int64            `json:"buckets,omitempty"` // known ones, for which a dry run's rule would hold
	}
	out.DryRun = f.dryRun
	var follow string
	err := f.on(ctx, a, func(ctx context.Context, table *limits.Table) (err error) {
		if out.Change, err = change(ctx, table); err != nil {
			return err
		}
		out.Other = otherRule(ctx, table, cmp.Or(out.After, out.Before))
		out.Followers, follow = followersOf(ctx, table, out.After)
		if f.dryRun {
			out.Buckets = new(int64)
			*out.Buckets, err = table.Reaches(ctx, *out.After)
		}
		return err
	})
	if err != nil {
		return err
	}
	before, after, text := out.Before, out.After, ""
	switch {
	case after != nil && before != nil && *after == *before:
		text, did = "nothing changed\n", "it is so already:"
	case after != nil:
		text, did = did+" "+ruleText(after)+"\n", beside
	}
	if f.dryRun {
		text = "dry run, nothing was changed; otherwise:\n" + text
	}
	if before != nil {
		text += did + " " + ruleText(before) + "\n"
	} else {
		text += did + " nothing: there was no such rule\n"
	}
	text += otherText(out.Other)
	if f.dryRun {
		known := plural(*out.Buckets, "known bucket", "known buckets") // a semaphore has a bucket per key
		text += "would hold for " + known + "\n"
	}
	return a.print(out, text+follow)
}

func newLimitsDeleteCommand(a *app, f *limitsFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "delete LIMITER [KEY] --note WHY",
		Short: "Delete a rule",
		Long: "Delete the rule for a KEY of a limiter, for the keys that begin with --prefix,\n" +
			"or for all its keys, and print it. A temporary rule (--expires) goes first, and\n" +
			"the permanent one applies again.",
		Example: lines(
			"pglimit limits delete api user:42 --note \"ticket 7 is done\"",
			"pglimit limits delete api --prefix bot: --note \"they behave\"",
		),
		Args: takes("LIMITER", "[KEY]"),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		rule, err := f.rule(cmd, args)
		if err != nil {
			return err
		}
		return a.changeLimit(cmd.Context(), f, "deleted", "", remove(rule, noSuchRule(&rule)))
	}
	f.addRuleTo(cmd)
	f.addKindTo(cmd)
	f.addWhyTo(cmd)
	return cmd
}

func noSuchRule(rule *limits.Rule) error {
	return fmt.Errorf("there is no %s rule for %s: \"pglimit limits list %s\" lists those there are", rule.Kind(),
		ruleWho(rule), word(rule.Limiter))
}

func newLimitsEnableCommand(a *app, f *limitsFlags, on bool) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "enable LIMITER [KEY] --note WHY",
		Short: "Enable a rule that was disabled",
		Long:  "Enable a rule that was disabled. The note becomes that of the rule.",
		Example: lines(
			"pglimit limits enable api user:42 --note \"it was not them\"",
		),
		Args: takes("LIMITER", "[KEY]"),
	}
	did := "enabled"
	if !on {
		did = "disabled"
		cmd.Use, cmd.Short = "disable LIMITER [KEY] --note WHY", "Disable a rule, as if it did not exist"
		cmd.Long = "Disable a rule: the next one applies, as if it did not exist. The note becomes\n" +
			"that of the rule. A temporary rule (--expires) goes first.\n\"pglimit limits off\" is for a whole limiter."
		cmd.Example = lines("pglimit limits disable api user:42 --note \"was it them?\"")
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		rule, err := f.rule(cmd, args)
		if err != nil {
			return err
		}
		return a.changeLimit(cmd.Context(), f, did, "it was",
			func(ctx context.Context, table *limits.Table) (c limits.Change, err error) {
				set := table.Disable
				if on {
					set = table.Enable
				}
				if c.Before, err = set(ctx, rule); err != nil {
					return c, err
				}
				if c.Before == nil {
					return c, noSuchRule(&rule)
				}
				changed := *c.Before
				if changed.Disabled == on {
					changed.Disabled, changed.Note, changed.By, changed.At = !on, rule.Note, rule.By, time.Time{}
				}
				c.After = &changed
				return c, nil
			})
	}
	f.addRuleTo(cmd)
	f.addKindTo(cmd)
	f.addWhyTo(cmd)
	return cmd
}
