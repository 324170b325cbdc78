package main

import (
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// The groups in which the help lists the commands.
const (
	groupDecide  = "decide"
	groupOperate = "operate"
	groupMore    = "more"
)

const rootLong = `Exact rate limits, decided in PostgreSQL by PostgreSQL's clock.

The database is named by --database-url, else by DATABASE_URL, else by the
variables that psql reads (PGHOST, PGPORT, PGDATABASE, PGUSER, PGPASSWORD,
PGSERVICE, ...). Prefer the environment for a URL with a password: other users
of the machine can read a command line.

Exit codes: 0 allowed or done, 1 denied (of bench, audit and prove: a limit was
not kept; of migrate status --check: something is pending), 2 failed, with one
line on stderr that says why, 130 ended by Ctrl-C (143 by SIGTERM, 129 by
SIGHUP).`

const rootExample = `  export DATABASE_URL=postgres://app@db.internal:5432/app
  pglimit migrate up
  pglimit allow nightly-report --limit 1/10m && ./report.sh
  pglimit bench`

func newRootCommand(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:           "pglimit",
		Short:         "Exact rate limits, decided in PostgreSQL",
		Version:       moduleVersion(),
		Long:          rootLong,
		Example:       rootExample,
		SilenceUsage:  true, // main prints errors, on one line
		SilenceErrors: true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownCommand(cmd, args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.SetFlagErrorFunc(flagError)
	root.SetUsageTemplate(usageTemplate(root.UsageTemplate()))

	flags := root.PersistentFlags()
	flags.StringVar(&a.databaseURL, "database-url", "",
		"database to use: a `URL`, or \"host=... dbname=...\" (default: from the environment)")
	a.output = outputText
	choiceVar(root, flags, &a.output, "output", "`FORMAT` of what is printed", outputText, outputJSON)

	root.AddGroup(
		&cobra.Group{ID: groupDecide, Title: "Decide:"},
		&cobra.Group{ID: groupOperate, Title: "Operate:"},
		&cobra.Group{ID: groupMore, Title: "More:"},
	)
	add := func(groupID string, commands ...*cobra.Command) {
		for _, command := range commands {
			command.GroupID = groupID
			root.AddCommand(command)
		}
	}
	add(groupDecide, newAllowCommand(a), newPeekCommand(a), newResetCommand(a), newPauseCommand(a), newRunCommand(a),
		newHoldersCommand(a), newTopCommand(a))
	add(groupOperate, newMigrateCommand(a), newLimitsCommand(a), newCleanupCommand(a), newStorageCommand(a),
		newDistributeCommand(a), newServeCommand(a), newBenchCommand(a), newAuditCommand(a))
	add(groupOperate, newProveCommands(a)...)
	addCobrasOwn(root)
	root.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveNoFileComp)
	keepOrder(root)
	return root
}

// keepOrder lists the flags of all commands in the order in which they are defined.
func keepOrder(cmd *cobra.Command) {
	cmd.Flags().SortFlags, cmd.PersistentFlags().SortFlags = false, false
	for _, sub := range cmd.Commands() {
		keepOrder(sub)
	}
}

// addCobrasOwn adds the commands help and completion. Completion fails without the name of a shell.
func addCobrasOwn(root *cobra.Command) {
	root.SetHelpCommandGroupID(groupMore)
	root.SetCompletionCommandGroupID(groupMore)
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	if completion, _, err := root.Find([]string{"completion"}); err == nil {
		group(completion)
	}
}

// usageTemplate is cobra's, with two changes: flags are wrapped, and a group of commands is listed as a command that
// runs by itself only if it says "runs".
func usageTemplate(cobras string) string {
	return strings.NewReplacer(
		"Flags.FlagUsages", "Flags.FlagUsagesWrapped 80",
		"{{if .Runnable}}\n  {{.UseLine}}{{end}}{{if .HasAvailableSubCommands}}\n  {{.CommandPath}} [command]{{end}}",
		"{{if or (not .HasAvailableSubCommands) .Annotations.runs}}\n"+
			"  {{.UseLine}}{{end}}{{if .HasAvailableSubCommands}}\n  {{.CommandPath}} [command]{{end}}").Replace(cobras)
}

// lines makes an indented example out of lines of shell.
func lines(text ...string) string {
	for i := range text {
		if text[i] != "" {
			text[i] = "  " + text[i]
		}
	}
	return strings.Join(text, "\n")
}

// moduleVersion has the commit, and whether it was changed, if this is no release.
func moduleVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}
