package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// choice is a flag that takes one of some words.
type choice struct {
	value   *string
	allowed []string
}

var _ pflag.Value = choice{}

// choiceVar defines a flag that takes one of the allowed words, and completes them. The
// default is what value points to.
func choiceVar(cmd *cobra.Command, flags *pflag.FlagSet, value *string, name, usage string, allowed ...string) {
	flags.Var(choice{value, allowed}, name, usage+": "+strings.Join(allowed, ", "))
	complete(cmd, name, cobra.FixedCompletions(allowed, cobra.ShellCompDirectiveNoFileComp))
}

func (c choice) String() string {
	if c.value == nil { // pflag asks the zero value, to know what not to print
		return ""
	}
	return *c.value
}

func (c choice) Set(text string) error {
	if !slices.Contains(c.allowed, text) {
		return fmt.Errorf("it must be one of %s", strings.Join(c.allowed, ", "))
	}
	*c.value = text
	return nil
}

func (c choice) Type() string { return "name" }

// timeoutVar defines the flag --timeout.
func timeoutVar(flags *pflag.FlagSet, timeout *time.Duration) {
	flags.DurationVar(timeout, "timeout", 10*time.Second,
		"longest `TIME` to wait for an answer, connecting included; 0 waits forever")
}

// anyFile has the shell offer file names, as it does for nothing else.
var anyFile = cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault)

// complete sets what the shell offers for a flag.
func complete(cmd *cobra.Command, name string, with cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(name, with); err != nil {
		panic(err) //nolint:forbidigo // no input: there is no such flag, and every run of the program would say so
	}
}
