//go:build unix

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
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglimit/ratelimit/semaphore"
)

// Run is two processes of this binary: the front, which the user starts, and its child, the keeper, which holds the
// permit and is the parent of the command.
//
//   - The keeper knows when everything has ended: its children (on Linux it adopts what its descendants leave behind),
//     and every process that inherited the write end of a pipe. Then it releases the permit, and exits with the
//     command's code.
//   - The keeper has its own process group, and ignores signals. The front writes the numbers of the signals that it
//     gets into a pipe, and the keeper passes them on. So a signal to a whole service reaches the command once.
//   - The end of that pipe means that the front was killed. A keeper without a command ends then; otherwise it
//     continues.
//   - A killed keeper cannot renew the permit. On Linux the kernel then kills the command, which is its child, and the
//     front adopts the rest and kills it.
//
// keeperPipe in the environment is the descriptor of that pipe, and makes a process the keeper.
const keeperPipe = "PGLIMIT_KEEPER"

func (a *app) runCommand(cmd *cobra.Command, f *runFlags, args []string) error {
	if fd, err := strconv.Atoi(os.Getenv(keeperPipe)); err == nil {
		syscall.CloseOnExec(fd)
		_ = os.Unsetenv(keeperPipe) // else the command's own run would be one
		return a.keep(context.WithoutCancel(cmd.Context()), f, args, os.NewFile(uintptr(fd), "signals"))
	}
	if err := f.check(cmd, args); err != nil {
		return err
	}
	return a.front()
}

// front starts the keeper, passes signals on to it, and returns its exit code.
func (a *app) front() error {
	adopt()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	fd, pipe, err := inheritedPipe(false)
	if err != nil {
		return err
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, signalsToPassOn()...)
	keeper := exec.Command(self, a.args...)
	keeper.Args[0], keeper.SysProcAttr = "pglimit-keeper", &syscall.SysProcAttr{Setpgid: true}
	keeper.Stdin, keeper.Stdout, keeper.Stderr = os.Stdin, os.Stdout, os.Stderr
	keeper.Env = append(os.Environ(), keeperPipe+"="+strconv.Itoa(fd))
	err = keeper.Start()
	_ = syscall.Close(fd)
	if err != nil {
		return err
	}
	ended := make(chan syscall.WaitStatus, 1)
	go func() { ended <- reap(keeper.Process.Pid, false) }()
	for {
		select {
		case s := <-signals:
			_, _ = pipe.Write([]byte{byte(s.(syscall.Signal))}) //nolint:gosec // there are 64 signals
		case status := <-ended:
			switch {
			case status.Signaled():
				killAll(keeper.Process.Pid)
				return a.says(exitLost, fmt.Errorf("the keeper of the place was ended by %v: so is the command",
					status.Signal()))
			case status.ExitStatus() != 0:
				return exitCode(status.ExitStatus())
			}
			return nil
		}
	}
}

// killAll kills the descendants of this process, until none is left.
func killAll(group int) {
	gone := make(chan struct{})
	go func() { reap(0, true); close(gone) }()
	for {
		signalAll(syscall.SIGKILL, group)
		select {
		case <-gone:
			return
		case <-time.After(100 * time.Millisecond): // what was started meanwhile
		}
	}
}

// inheritedPipe has one end that a child inherits under the same number, and one for this process.
func inheritedPipe(childWrites bool) (fd int, own *os.File, err error) {
	own, end, err := os.Pipe()
	if err != nil {
		return 0, nil, err
	}
	if !childWrites {
		own, end = end, own
	}
	defer end.Close()                    //nolint:errcheck // there is a copy
	fd, err = syscall.Dup(int(end.Fd())) // without close-on-exec
	return fd, own, err
}

// signalsToPassOn returns all signals except those that the kernel and the Go runtime use, those with which a terminal
// stops and continues jobs, and those that this process was started to ignore.
func signalsToPassOn() (signals []os.Signal) {
	for s := syscall.Signal(1); s < 65; s++ {
		switch s {
		case syscall.SIGKILL, syscall.SIGSTOP, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU, syscall.SIGCONT,
			syscall.SIGCHLD, syscall.SIGURG, syscall.SIGPIPE, syscall.SIGSEGV, syscall.SIGBUS, syscall.SIGFPE,
			syscall.SIGILL, syscall.SIGTRAP, syscall.SIGABRT, syscall.SIGSYS, syscall.SIGPROF:
			continue
		}
		if !signal.Ignored(s) {
			signals = append(signals, s)
		}
	}
	return signals
}

// reap waits for the child, or for all children, and returns how the child ended.
func reap(child int, all bool) (how syscall.WaitStatus) {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		if pid == child {
			how = status
		}
		if pid == child && !all || err != nil && !errors.Is(err, syscall.EINTR) {
			return how
		}
	}
}

// keep holds a place while the command runs.
func (a *app) keep(ctx context.Context, f *runFlags, args []string, pipe io.Reader) error {
	signal.Notify(make(chan os.Signal, 1), signalsToPassOn()...) // nobody reads them
	path, err := exec.LookPath(args[0])
	if err != nil { // before a place is taken
		return a.cannotRun(args[0], err)
	}
	command := exec.Command(path, args[1:]...)
	command.Args[0] = args[0]
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr

	starting, end := context.WithCancelCause(ctx)
	defer end(nil)
	signals := make(chan syscall.Signal, 8)
	go func() {
		for number := make([]byte, 1); ; {
			if _, err := io.ReadFull(pipe, number); err != nil {
				end(exitFailed) // the front was killed
				return
			}
			s := syscall.Signal(number[0])
			if s == syscall.SIGINT || s == syscall.SIGTERM || s == syscall.SIGHUP {
				end(exitCode(128 + int(s))) // no command has been started: else this does nothing
			}
			signals <- s
		}
	}()
	connecting, cancel := context.WithTimeout(starting, f.connecting)
	defer cancel()
	pool, err := a.pool(connecting)
	if err != nil {
		return endOf(starting, err)
	}
	defer pool.Close()
	f.Timeout, f.MaxWait = min(f.connecting, f.TTL), f.wait
	places, err := semaphore.New(pool, f.Config)
	if err != nil {
		return err
	}
	permit, err := f.acquire(starting, places)
	if errors.Is(err, semaphore.ErrFull) && starting.Err() == nil {
		if f.wait > 0 {
			err = fmt.Errorf("no place for %q within --wait %v: the command has not run", f.key, f.wait)
		} else {
			err = fmt.Errorf("no place for %q: the command has not run; --wait waits for one", f.key)
		}
		return a.says(exitNoPlace, err)
	}
	if err != nil {
		return endOf(starting, err)
	}
	command.Env = append(os.Environ(), fmt.Sprintf("PGLIMIT_TOKEN=%d", permit.Token))
	code := a.supervise(command, permit, signals, f.grace)
	if err := permit.Release(ctx); err != nil && code != exitLost {
		_ = a.says(code, fmt.Errorf("the place comes back in %v: %w", f.TTL, err))
	}
	if code == 0 {
		return nil
	}
	return code
}

// endOf returns the exit code for a signal that came before the command was started, or the error.
func endOf(starting context.Context, err error) error {
	if starting.Err() != nil {
		return context.Cause(starting)
	}
	return err
}

// acquire acquires a permit. starting ends only the wait: later, the command that gets the signal decides.
func (f *runFlags) acquire(
	starting context.Context, places *semaphore.Semaphore,
) (permit *semaphore.Permit, err error) {
	ctx, end := context.WithCancelCause(context.WithoutCancel(starting))
	unlink := context.AfterFunc(starting, func() { end(context.Cause(starting)) })
	if f.wait > 0 {
		permit, err = places.Acquire(ctx, f.key)
	} else if permit, _, err = places.TryAcquire(ctx, f.key); permit == nil && err == nil {
		err = semaphore.ErrFull
	}
	if !unlink() && err == nil {
		err = errors.Join(context.Cause(starting), permit.Release(ctx))
	}
	return permit, err
}

// supervise runs the command until it and everything that it started has ended.
func (a *app) supervise(command *exec.Cmd, permit *semaphore.Permit, signals <-chan syscall.Signal,
	grace time.Duration) exitCode {
	runtime.LockOSThread() // the command is told if this thread ends: see diesWithParent
	defer runtime.UnlockOSThread()
	adopt()
	// From a terminal the command stays in the front's group, which the terminal signals.
	terminal := isTerminal(os.Stdin)
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if terminal {
		command.SysProcAttr.Pgid, _ = syscall.Getpgid(os.Getppid())
	}
	diesWithParent(command.SysProcAttr)
	fd, inherited, err := inheritedPipe(true)
	if err == nil {
		err = command.Start()
		_ = syscall.Close(fd)
	}
	if err != nil {
		return a.cannotRun(command.Args[0], err)
	}
	pid := command.Process.Pid
	group := -pid
	if terminal {
		group = pid
	}
	ended := make(chan syscall.WaitStatus, 1)
	go func() {
		how := reap(pid, true)
		_, _ = io.Copy(io.Discard, inherited) // until every process that inherited it has ended
		ended <- how
	}()
	lost, kill, code := permit.Context().Done(), (<-chan time.Time)(nil), exitCode(0)
	for {
		select {
		case how := <-ended:
			if code == 0 {
				code = codeOf(how)
			}
			return code
		case s := <-signals:
			// A terminal has sent these three to the command, too.
			if !terminal || s != syscall.SIGINT && s != syscall.SIGQUIT && s != syscall.SIGWINCH {
				_ = syscall.Kill(group, s)
			}
		case <-lost:
			code = a.says(exitLost, fmt.Errorf("%w: the command is ended", semaphore.ErrLost))
			signalAll(syscall.SIGTERM, -group)
			lost, kill = nil, time.After(grace)
		case <-kill:
			signalAll(syscall.SIGKILL, -group)
			kill = time.After(100 * time.Millisecond) // what was started meanwhile
		}
	}
}

// codeOf returns the exit code of an ended command, as a shell reports it.
func codeOf(how syscall.WaitStatus) exitCode {
	if how.Signaled() {
		return exitCode(128 + int(how.Signal()))
	}
	return exitCode(how.ExitStatus())
}

func (a *app) cannotRun(name string, err error) exitCode {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		return a.says(exitNotFound, fmt.Errorf("there is no command %q: %w", name, err))
	}
	return a.says(exitCannotRun, fmt.Errorf("%q cannot be run: %w", name, err))
}

// says prints the reason on stderr, and returns the code.
func (a *app) says(code exitCode, why error) exitCode {
	_, _ = io.WriteString(a.stderr, "pglimit: "+oneLine(why)+"\n")
	return code
}
