package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// usagef returns the error for an invalid command line. It points to the help.
func usagef(cmd *cobra.Command, format string, args ...any) error {
	return fmt.Errorf("%s (see %q)", fmt.Sprintf(format, args...), cmd.CommandPath()+" --help")
}

// flagError turns cobra's error about a flag into one of [usagef].
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) && cmd.HasSubCommands() && cmd.Flags().NArg() > 0 {
		return unknownCommand(cmd, cmd.Flags().Arg(0)) // the flag is that of a command whose name is wrong
	}
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) {
		why := invalid.Unwrap().Error()
		switch invalid.GetFlag().Value.Type() {
		case "int", "int32", "int64":
			why = "it must be a whole number"
		case "float64":
			why = "it must be a number"
		case "duration":
			why = "it must be a duration such as 500ms, 10s or 1m30s"
		}
		return usagef(cmd, "--%s is %q: %s", invalid.GetFlag().Name, invalid.GetValue(), why)
	}
	return usagef(cmd, "%v", err)
}

// flagGroup is some flags of a command under a title of their own in its help.
type flagGroup struct {
	title string
	add   func(*pflag.FlagSet)
}

// groupFlags defines the flags of a command that has many. Cobra has groups of commands, and none of flags.
func groupFlags(cmd *cobra.Command, groups ...flagGroup) {
	var help strings.Builder
	for i, g := range groups {
		flags := pflag.NewFlagSet(g.title, pflag.ContinueOnError)
		flags.SortFlags = false
		g.add(flags)
		if i == len(groups)-1 {
			flags.BoolP("help", "h", false, "help for "+cmd.Name())
		}
		fmt.Fprintf(&help, "%s:\n%s\n", g.title, flags.FlagUsagesWrapped(80))
		cmd.Flags().AddFlagSet(flags)
	}
	const flags = "Flags:\n{{.LocalFlags.FlagUsagesWrapped 80 | trimTrailingWhitespaces}}"
	cmd.SetUsageTemplate(strings.Replace(usageTemplate(cmd.UsageTemplate()), flags, strings.TrimRight(help.String(), "\n"), 1))
}

func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef(cmd, "%s takes no arguments, not %q", cmd.Name(), stray(args[0]))
	}
	return nil
}

// stray returns an argument as an error shows it, without a password.
func stray(arg string) string {
	if strings.ContainsAny(arg, ":=@") {
		return "..." // a connection string, or a part of one
	}
	return arg
}

// takes returns a check of a command's arguments: what they are, in order. Those in brackets may be left out. None may be
// empty: a variable that is not set must not mean all keys.
func takes(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		for i, name := range names {
			switch {
			case i < len(args) && args[i] == "":
				return usagef(cmd, "the %s is empty", strings.Trim(name, "[]"))
			case i >= len(args) && !strings.HasPrefix(name, "["):
				return usagef(cmd, "%s needs a %s", cmd.Name(), name)
			}
		}
		if len(args) > len(names) {
			return usagef(cmd, "%s takes %s, not %d arguments: quote a key that has spaces", cmd.Name(),
				strings.Join(names, " "), len(args))
		}
		return nil
	}
}

// group makes a command of commands, which fails without one of them. Cobra would print the help and succeed, and a
// deployment that forgot the "up" of "migrate up" would seem to have migrated.
func group(cmd *cobra.Command, members ...*cobra.Command) *cobra.Command {
	cmd.AddCommand(members...)
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			var names []string
			for _, member := range cmd.Commands() {
				names = append(names, member.Name())
			}
			return usagef(cmd, "say which: %s %s", cmd.CommandPath(), strings.Join(names, "|"))
		}
		return unknownCommand(cmd, args[0])
	}
	return cmd
}

func unknownCommand(cmd *cobra.Command, name string) error {
	message := fmt.Sprintf("there is no command %q", cmd.CommandPath()+" "+stray(name))
	cmd.SuggestionsMinimumDistance = 2 // cobra sets it only in code that does not run here
	if similar := cmd.SuggestionsFor(name); len(similar) > 0 {
		message += ", did you mean " + strings.Join(similar, " or ") + "?"
	}
	return usagef(cmd, "%s", message)
}
