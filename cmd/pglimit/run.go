package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglimit/ratelimit/semaphore"
)

const runLong = `Run a command while holding one of --concurrency places of a key.

At most that many commands run at once, across all machines: with 1, it is a
lock for cron jobs. If no place is free, run gives up, or waits as long as
--wait. The place is held until everything that the command started has ended;
after a crash it is free again after --ttl.

The exit code is the command's (128 plus the signal's number if a signal killed
it). It is 75 if there was no place and the command did not run, 127 if there is
no such command, 126 if it cannot be run, and 2 if the database does not answer;
stderr says which. Signals are passed on.

The place is lost if the database does not answer for --ttl. Then the command
and everything it started get SIGTERM, and SIGKILL after --grace; the exit code
is 76. PGLIMIT_TOKEN in the command's environment is a number larger than that
of every earlier holder. Let the systems that it writes to reject smaller ones.
docs/semaphore.md says what happens when something is killed.`

// Exit codes of run besides the command's.
const (
	exitNoPlace   exitCode = 75 // EX_TEMPFAIL of sysexits.h
	exitLost      exitCode = 76
	exitCannotRun exitCode = 126 // as shells have it
	exitNotFound  exitCode = 127
)

type runFlags struct {
	semaphore.Config
	key        string
	wait       time.Duration
	grace      time.Duration
	connecting time.Duration
}

func newRunCommand(a *app) *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run --key KEY [flags] -- COMMAND [ARGUMENT]...",
		Short: "Run a command, limiting how many run at once",
		Long:  runLong,
		Example: lines(
			"# in the crontab of three machines: one of them makes the report",
			"pglimit run --key nightly -- ./report.sh",
			"",
			"# at most five imports of a tenant at once; the sixth waits",
			"pglimit run --key \"import:$TENANT\" --concurrency 5 --wait 1h -- ./import.sh",
			"",
			"# as many as an operator says",
			"pglimit limits set cli --prefix import: --action places --limit 5 --note RAM",
			"pglimit run --key \"import:$TENANT\" --from-table --wait 1h -- ./import.sh",
		),
		ValidArgsFunction: anyFile,
		RunE:              func(cmd *cobra.Command, args []string) error { return a.runCommand(cmd, &f, args) },
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false) // the flags behind the command are the command's
	flags.StringVar(&f.key, "key", "", "`KEY` of which the places are (required)")
	flags.Int64Var(&f.Places, "concurrency", 1, "`PLACES`: how many commands run at once")
	flags.BoolVar(&f.FromTable, "from-table", false, "as many as the table of limits says (\"pglimit limits set cli "+
		"--action places\"); without a rule for the key, --concurrency")
	flags.DurationVar(&f.wait, "wait", 0, "longest `TIME` to wait for a place")
	flags.StringVar(&f.Name, "limiter", "cli",
		"`NAME` of the semaphore: the same key under another name has other places")
	flags.DurationVar(&f.TTL, "ttl", 30*time.Second, "`TIME` after which the place of a crashed machine comes back")
	flags.DurationVar(&f.grace, "grace", 10*time.Second,
		"`TIME` between SIGTERM and SIGKILL for a command that has lost its place")
	flags.DurationVar(&f.connecting, "timeout", 10*time.Second,
		"longest `TIME` to wait for the first answer of the database")
	return cmd
}

func (f *runFlags) check(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return usagef(cmd, "run needs a COMMAND, behind --")
	case f.key == "":
		return usagef(cmd, "run needs a --key, such as --key nightly")
	case f.Places < 1:
		return fmt.Errorf("--concurrency is %d: it must be at least 1", f.Places)
	case f.wait < 0:
		return fmt.Errorf("--wait is %v: it must not be negative", f.wait)
	case f.grace < 0:
		return fmt.Errorf("--grace is %v: it must not be negative", f.grace)
	case f.TTL < time.Second || f.TTL > 24*time.Hour:
		return fmt.Errorf("--ttl is %v: it must be from 1s to 24h", f.TTL)
	case f.connecting <= 0:
		return fmt.Errorf("--timeout is %v: it must be longer than zero", f.connecting)
	}
	return nil
}
