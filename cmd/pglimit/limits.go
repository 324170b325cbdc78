package main

import (
	"context"
	"errors"
	"fmt"
	"os/user"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pglimit/ratelimit/limits"
	"github.com/pglimit/ratelimit/pglimit"
)

const limitsLong = `Change limits while services run. The table pglimit.limits has rules for the
keys of a limiter: for one KEY, for those that begin with --prefix, or for all.
The most specific rule applies: the one for the key, then the one for the
longest prefix, then the one for all keys. Services that read the table, and
"pglimit serve", follow within two seconds. A semaphore is named like a limiter;
--action places sets its number of places.

Every change needs a --note, and stays in the history with its author. See
docs/limits.md.`

func newLimitsCommand(a *app) *cobra.Command {
	f := new(limitsFlags)
	cmd := group(&cobra.Command{
		Use:   "limits",
		Short: "Change limits while services run",
		Long:  limitsLong,
		Example: lines(
			"pglimit limits set api --limit 100/1m --note \"the default\"",
			"pglimit limits set api user:42 --limit 500/1m --note \"ticket 7\" --expires 24h",
		),
	}, newLimitsListCommand(a, f), newLimitsExplainCommand(a, f), newLimitsHistoryCommand(a, f),
		newLimitsSetCommand(a, f), newLimitsDeleteCommand(a, f),
		newLimitsEnableCommand(a, f, true), newLimitsEnableCommand(a, f, false),
		newLimitsOffCommand(a, f), newLimitsOnCommand(a, f), newLimitsImportCommand(a, f), newLimitsExportCommand(a, f))
	timeoutVar(cmd.PersistentFlags(), &f.timeout)
	return cmd
}

// limitsFlags are the flags of the commands about limits. Each command uses some of them.
type limitsFlags struct {
	timeout time.Duration

	prefix string
	kind   string

	note string
	by   string

	expires string
	dryRun  bool
}

// addRuleTo defines the flags that identify a rule, together with LIMITER and KEY.
func (f *limitsFlags) addRuleTo(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.prefix, "prefix", "", "the rule for the keys that begin with `PREFIX`, instead of a KEY")
}

// addKindTo defines the flag of commands that act on an existing rule.
func (f *limitsFlags) addKindTo(cmd *cobra.Command) {
	f.kind = "live"
	choiceVar(cmd, cmd.Flags(), &f.kind, "kind",
		"`KIND` of the rule: what is only observed, and places, stand beside the live one", "live", "observe", "places")
}

// addWhyTo defines the flags of commands that change something.
func (f *limitsFlags) addWhyTo(cmd *cobra.Command) {
	f.by = osUser()
	cmd.Flags().StringVar(&f.note, "note", "", "`WHY`, for the history (required)")
	cmd.Flags().StringVar(&f.by, "by", f.by, "`WHO` changes it, for the history")
}

// addDryRunTo defines the flag of commands that set a rule.
func (f *limitsFlags) addDryRunTo(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "change nothing, and say what it would change")
}

// osUser returns the user of the machine, or "" if it is not known: then the connected role is recorded.
func osUser() string {
	if current, err := user.Current(); err == nil {
		return current.Username
	}
	return ""
}

// rule returns the rule that the arguments LIMITER and KEY and the flags identify.
func (f *limitsFlags) rule(cmd *cobra.Command, args []string) (limits.Rule, error) {
	rule := limits.Rule{Prefix: f.prefix, Note: f.note, By: f.by}
	switch {
	case cmd.Flags().Changed("prefix") && f.prefix == "":
		return rule, errors.New("--prefix is empty: leave it out for all keys")
	case len(args) == 2 && f.prefix != "":
		return rule, usagef(cmd, "%s takes a KEY or a --prefix, not both", cmd.Name())
	}
	rule.Limiter = args[0]
	if len(args) == 2 {
		rule.Key = args[1]
	}
	switch f.kind {
	case "observe":
		rule.Action = pglimit.ActionObserve
	case "places":
		rule.Action = pglimit.ActionPlaces
	}
	return rule, f.needsNote(cmd)
}

// needsNote checks --note, if the command has it.
func (f *limitsFlags) needsNote(cmd *cobra.Command) error {
	if cmd.Flags().Lookup("note") != nil && strings.TrimSpace(f.note) == "" {
		return usagef(cmd, "%s needs --note WHY: the history tells those who ask later", cmd.Name())
	}
	return nil
}

// on calls do with the table, within --timeout.
func (f *limitsFlags) on(ctx context.Context, a *app, do func(context.Context, *limits.Table) error) error {
	const unanswered = ": perhaps a transaction that changes limits is open; it is not known whether " +
		"anything was changed"
	return a.within(ctx, f.timeout, 0, unanswered, func(ctx context.Context, pool *pgxpool.Pool) error {
		return do(ctx, limits.New(pool))
	})
}

// expiry returns when a rule is to end, by the database's clock.
func (f *limitsFlags) expiry(ctx context.Context, table *limits.Table) (time.Time, error) {
	if f.expires == "" {
		return time.Time{}, nil
	}
	now, err := table.Now(ctx)
	if err != nil {
		return now, err
	}
	at, err := limits.ParseExpiry(f.expires, now)
	if err != nil {
		return at, fmt.Errorf("--expires %w", err)
	}
	return at, nil
}
