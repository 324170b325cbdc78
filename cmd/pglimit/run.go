package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglimit/ratelimit/semaphore"
)

const runLong = `Run a command while holding one of --concurrency places of a key.

At most so many commands run at once, on whatever machines: with 1, it is a lock
for cron jobs. A crash does not keep the place: it comes back after --ttl.
Without a free place it gives up, or waits for one for as long as --wait says.

The exit code is the command's (128 and the signal's number if a signal killed
it). It is 75 if there was no place and the command did not run, 127 if there is
no such command, 126 if it cannot be run, and 2 if the database cannot be asked;
stderr says which. Signals are passed on to the command and, where no terminal
is its input, to the processes that it started.

The place is lost if the database does not answer for --ttl. Then the command
is ended by SIGTERM, and by SIGKILL if it still runs after --grace: the exit
code is 76. The command finds a number in PGLIMIT_TOKEN that is larger than
those of all who held the place before. Let what it writes to refuse a smaller
one.`

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
		Short: "Run a command, at most so many at once on all machines",
		Long:  runLong,
		Example: lines(
			"# in the crontab of three machines: one of them makes the report",
			"pglimit run --key nightly -- ./report.sh",
			"",
			"# at most five imports of a tenant at once; the sixth waits",
			"pglimit run --key \"import:$TENANT\" --concurrency 5 --wait 1h -- ./import.sh",
			"",
			"# as many as an operator says: pglimit limits set cli --prefix import: --action places --limit 5 --note memory",
			"pglimit run --key \"import:$TENANT\" --from-table --wait 1h -- ./import.sh",
		),
		RunE: func(cmd *cobra.Command, args []string) error { return a.runCommand(cmd, &f, args) },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.SetInterspersed(false) // the flags behind the command are the command's
	flags.StringVar(&f.key, "key", "", "`KEY` of which the places are (required)")
	flags.Int64Var(&f.Places, "concurrency", 1, "`PLACES`: how many commands run at once")
	flags.BoolVar(&f.FromTable, "from-table", false, "as many as the table of limits says (\"pglimit limits set cli --action places\"); without a rule for the key, --concurrency")
	flags.DurationVar(&f.wait, "wait", 0, "longest `TIME` to wait for a place")
	flags.StringVar(&f.Name, "limiter", "cli", "`NAME` of the semaphore: the same key under another name has other places")
	flags.DurationVar(&f.TTL, "ttl", 30*time.Second, "`TIME` after which the place of a crashed machine comes back")
	flags.DurationVar(&f.grace, "grace", 10*time.Second, "`TIME` between SIGTERM and SIGKILL for a command that has lost its place")
	flags.DurationVar(&f.connecting, "timeout", 10*time.Second, "longest `TIME` to wait for the first answer of the database")
	noFiles(cmd, "key", "concurrency", "wait", "limiter", "ttl", "grace", "timeout")
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

func (a *app) runCommand(cmd *cobra.Command, f *runFlags, args []string) error {
	if err := f.check(cmd, args); err != nil {
		return err
	}
	path, err := exec.LookPath(args[0])
	if err != nil { // before a place is taken
		return a.cannotRun(args[0], err)
	}
	command := exec.Command(path, args[1:]...)
	command.Args[0] = args[0]
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, a.stdout, a.stderr

	connecting, cancel := context.WithTimeout(cmd.Context(), f.connecting)
	defer cancel()
	pool, err := a.pool(connecting)
	if err != nil {
		return err
	}
	defer pool.Close()
	f.Timeout, f.MaxWait = min(f.connecting, f.TTL), f.wait
	places, err := semaphore.New(pool, f.Config)
	if err != nil {
		return err
	}
	signals, stop := signalsToPassOn()
	defer stop()
	permit, err := f.acquire(cmd.Context(), places)
	if errors.Is(err, semaphore.ErrFull) {
		if f.wait > 0 {
			err = fmt.Errorf("no place for %q within --wait %v: the command has not run", f.key, f.wait)
		} else {
			err = fmt.Errorf("no place for %q: the command has not run; --wait waits for one", f.key)
		}
		return a.says(exitNoPlace, err)
	}
	if err != nil {
		return err
	}
	command.Env = append(os.Environ(), fmt.Sprintf("PGLIMIT_TOKEN=%d", permit.Token))
	code := a.supervise(command, permit, signals, f.grace)
	if err := permit.Release(cmd.Context()); err != nil && code != exitLost {
		_ = a.says(code, fmt.Errorf("the place comes back in %v: %w", f.TTL, err))
	}
	if code == 0 {
		return nil
	}
	return code
}

// acquire a permit that a signal does not end: the command that gets the signal decides.
func (f *runFlags) acquire(ctx context.Context, places *semaphore.Semaphore) (*semaphore.Permit, error) {
	own, end := context.WithCancelCause(context.WithoutCancel(ctx))
	unlink := context.AfterFunc(ctx, func() { end(context.Cause(ctx)) })
	defer unlink()
	if f.wait > 0 {
		return places.Acquire(own, f.key)
	}
	permit, ok, err := places.TryAcquire(own, f.key)
	if err == nil && !ok {
		err = semaphore.ErrFull
	}
	return permit, err
}

// signalsToPassOn has the signals that come until stop.
func signalsToPassOn() (signals chan os.Signal, stop func()) {
	signals = make(chan os.Signal, 8)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGQUIT)
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(signals, syscall.SIGHUP)
	}
	return signals, func() { signal.Stop(signals) }
}

// supervise runs the command until it ends.
func (a *app) supervise(command *exec.Cmd, permit *semaphore.Permit, signals <-chan os.Signal, grace time.Duration) exitCode {
	runtime.LockOSThread() // the command is told if this thread ends: see prepare
	defer runtime.UnlockOSThread()
	terminal := isTerminal(os.Stdin)
	send := prepare(command, terminal)
	if err := command.Start(); err != nil {
		return a.cannotRun(command.Args[0], err)
	}
	ended := make(chan struct{})
	go func() {
		_ = command.Wait() // its state says how it ended
		close(ended)
	}()
	lost, kill, code := permit.Context().Done(), (<-chan time.Time)(nil), exitCode(0)
	for {
		select {
		case <-ended:
			if code == 0 {
				code = codeOf(command.ProcessState)
			}
			return code
		case s := <-signals:
			// A terminal has sent these to the command, too.
			if !terminal || !slices.Contains([]os.Signal{os.Interrupt, syscall.SIGQUIT}, s) {
				send(s)
			}
		case <-lost:
			code = a.says(exitLost, fmt.Errorf("%w: the command is ended", semaphore.ErrLost))
			send(syscall.SIGTERM)
			lost, kill = nil, time.After(grace)
		case <-kill:
			send(syscall.SIGKILL)
		}
	}
}

// codeOf a command that has ended, as a shell says it.
func codeOf(state *os.ProcessState) exitCode {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return exitCode(128 + int(status.Signal()))
	}
	return exitCode(state.ExitCode())
}

func (a *app) cannotRun(name string, err error) exitCode {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		return a.says(exitNotFound, fmt.Errorf("there is no command %q: %w", name, err))
	}
	return a.says(exitCannotRun, fmt.Errorf("%q cannot be run: %w", name, err))
}

// says why on stderr, and returns the code.
func (a *app) says(code exitCode, why error) exitCode {
	_, _ = io.WriteString(a.stderr, "pglimit: "+oneLine(why)+"\n")
	return code
}
