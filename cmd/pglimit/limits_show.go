package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglimit/ratelimit/limits"
	"github.com/pglimit/ratelimit/pglimit"
)

func newLimitsListCommand(a *app, f *limitsFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "list [LIMITER]",
		Short: "List the rules, of one limiter or of all",
		Long: "List the rules of one limiter or of all, in the order in which they are looked\n" +
			"up for a key. KEYS is a key, a prefix with a star, or a star for all. Times are\nUTC.",
		Example: lines(
			"pglimit limits list",
			"pglimit limits list api --output json | jq '.limits[].note'",
		),
		Args: takes("[LIMITER]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			rules, err := f.list(cmd.Context(), a)
			if err != nil {
				return err
			}
			if len(args) == 1 {
				rules = slices.DeleteFunc(rules, func(r limits.Rule) bool {
					return r.Limiter != args[0] && r.Limiter != ""
				})
			}
			return a.printRules(rules)
		},
	}
}

func (f *limitsFlags) list(ctx context.Context, a *app) (rules []limits.Rule, err error) {
	err = f.on(ctx, a, func(ctx context.Context, table *limits.Table) error {
		rules, err = table.List(ctx)
		return err
	})
	return rules, err
}

func (a *app) printRules(rules []limits.Rule) error {
	out := struct {
		Limits []limits.Rule `json:"limits"`
	}{rules}
	var rows [][]string
	for i := range rules {
		r := &rules[i]
		rows = append(rows, []string{ruleLimiter(r), ruleKeys(r), r.Action.String(), r.Limit, r.MaxWait, ruleState(r),
			word(r.By), r.At.Format(time.DateTime), inLine(r.Note)})
	}
	head := []string{"LIMITER", "KEYS", "ACTION", "LIMIT", "MAX WAIT", "STATE", "BY", "CHANGED", "NOTE"}
	return a.print(out, columns(head, rows))
}

const limitsExplainLong = `Say what applies to a key: its rules in the order in which they are looked up,
the state of each, and what is left in its bucket (of the strategy token_bucket)
or how many places are held. Nothing is taken or counted.

If no rule applies, the limit of the service's configuration does. A request
that brings its own limit ignores a limit for all keys.`

func newLimitsExplainCommand(a *app, f *limitsFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "explain LIMITER KEY",
		Short: "Say which rules are for a key, and which applies",
		Long:  limitsExplainLong,
		Example: lines(
			"pglimit limits explain api user:42",
		),
		Args: takes("LIMITER", "KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var rules []limits.Explanation
			var followers *limits.Followers
			var follow string
			err := f.on(cmd.Context(), a, func(ctx context.Context, table *limits.Table) (err error) {
				rules, err = table.Explain(ctx, args[0], args[1])
				for i := range rules {
					if rules[i].State == limits.Holds && follow == "" {
						followers, follow = followersOf(ctx, table,
							&limits.Rule{Limiter: args[0], Action: rules[i].Action})
					}
				}
				return err
			})
			if err != nil {
				return err
			}
			return a.print(explainJSON{args[0], args[1], rules, followers}, explainText(args[0], args[1], rules)+follow)
		},
	}
}

type explainJSON struct {
	Limiter string               `json:"limiter"`
	Key     string               `json:"key"`
	Rules   []limits.Explanation `json:"rules"` // in the order in which they are looked up

	Followers *limits.Followers `json:"followers,omitempty"` // if a rule for limiters holds, and it is known
}

func explainText(limiter, key string, rules []limits.Explanation) string {
	var rows [][]string
	const none = "no rule: the limit in the service's configuration holds"
	decides, beside := none, ""
	for i := range rules {
		r := &rules[i]
		rows = append(rows, []string{ruleLimiter(&r.Rule), ruleKeys(&r.Rule), ruleDoes(&r.Rule), string(r.State)})
		switch {
		case r.State == limits.Fails && r.Action == pglimit.ActionObserve:
			beside += "observed: " + ruleText(&r.Rule) + "\nit fails: " + r.Why + "\n"
		case r.State == limits.Fails:
			decides = ruleText(&r.Rule) + "\nit fails each request: " + r.Why
		case r.State != limits.Holds:
		case r.Action == pglimit.ActionObserve:
			beside += "observed: " + ruleText(&r.Rule) + bucketOf(r) + "\n"
		case r.Action == pglimit.ActionPlaces:
			beside += fmt.Sprintf("semaphore: %s\n%d of %s places are held\n", ruleText(&r.Rule), r.Held, r.Limit)
			if decides == none { // perhaps there is no limiter of this name
				decides = ""
			}
		default:
			decides = ruleText(&r.Rule) + bucketOf(r)
		}
	}
	text := ""
	if len(rows) > 0 {
		text = columns([]string{"LIMITER", "KEYS", "RULE", "STATE"}, rows) + "\n"
	}
	if decides != "" {
		text += fmt.Sprintf("%s %s is under %s\n", word(limiter), word(key), decides)
	}
	return text + beside
}

// bucketOf says how full the bucket is under the rule, if it has one.
func bucketOf(r *limits.Explanation) string {
	limit, err := pglimit.ParseLimit(r.Limit)
	if r.Bucket == nil || err != nil {
		return ""
	}
	return "\n" + bucketText(limit, pglimit.Decision{
		Allowed: r.Bucket.RetryAfter == 0, Remaining: r.Bucket.Remaining,
		RetryAfter: r.Bucket.RetryAfter, ResetAfter: r.Bucket.ResetAfter,
	})
}

const limitsHistoryLong = `Say what was changed, by whom and why, latest first: the rules of a limiter that
affect a KEY, all its rules, or those of all limiters. Times are UTC. ROLE is
the connected role, BY the name that it gave. KEYS says which keys a rule is
for: the key itself, a prefix of it (with a star), or all (a star).`

func newLimitsHistoryCommand(a *app, f *limitsFlags) *cobra.Command {
	last := int64(20)
	cmd := &cobra.Command{
		Use:   "history [LIMITER [KEY]]",
		Short: "Say who changed which rule, and why",
		Long:  limitsHistoryLong,
		Example: lines(
			"pglimit limits history",
			"pglimit limits history api user:42",
		),
		Args: takes("[LIMITER]", "[KEY]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if last < 1 {
				return fmt.Errorf("--last is %d: it must be at least 1", last)
			}
			args = append(args, "", "")
			var entries []limits.Entry
			err := f.on(cmd.Context(), a, func(ctx context.Context, table *limits.Table) (err error) {
				entries, err = table.History(ctx, args[0], args[1], last)
				return err
			})
			if err != nil {
				return err
			}
			return a.printHistory(entries)
		},
	}
	cmd.Flags().Int64Var(&last, "last", last, "the number of latest `CHANGES` to print")
	return cmd
}

func (a *app) printHistory(entries []limits.Entry) error {
	out := struct {
		History []limits.Entry `json:"history"` // the latest first
	}{entries}
	var rows [][]string
	for i := range entries {
		e := &entries[i]
		of := cmp.Or(e.After, e.Before)
		rows = append(rows, []string{e.At.Format(time.DateTime), word(e.By), word(e.Role), ruleLimiter(of),
			ruleKeys(of), changeText(&e.Change), inLine(e.Note)})
	}
	return a.print(out, columns([]string{"AT", "BY", "ROLE", "LIMITER", "KEYS", "CHANGE", "NOTE"}, rows))
}

// changeText is "none -> enforce 5/s", "enforce 5/s -> deny", "deny -> none".
func changeText(c *limits.Change) string {
	side := func(r *limits.Rule) string {
		if r == nil {
			return "none"
		}
		return ruleDoes(r)
	}
	return strings.Join([]string{side(c.Before), side(c.After)}, " -> ")
}
