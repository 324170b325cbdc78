//go:build unix

package pgserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// throwaway is a program of this machine and its files.
type throwaway struct {
	account *account // the user that it runs as; nil: ours
	dir     string   // holds all its files
	guard   *guard
	process *process // nil until there is one
}

// open makes the folder, in memory if that is asked for and there is room, and starts the guard. Call close
// also after an error.
func (t *throwaway) open(inMemory bool) (err error) {
	if t.account, err = unprivileged(); err != nil {
		return err
	}
	if inMemory {
		t.dir = t.account.memoryDir()
	}
	if t.dir == "" {
		if t.dir, err = t.account.tempDir(); err != nil {
			return err
		}
	}
	t.guard, err = newGuard(cleanUpLocal, t.dir)
	return err
}

// write makes a file that only the account can read, of one or more lines.
func (t *throwaway) write(name, text string) (path string, err error) {
	path = filepath.Join(t.dir, name)
	if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
		return "", err
	}
	return path, t.account.own(path)
}

// command is a program that must not depend on the caller's surroundings:
// it gets no PG* variable, no language, and a folder that its account can reach.
func (t *throwaway) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = t.dir
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "PG") && !strings.HasPrefix(variable, "LC_") && !strings.HasPrefix(variable, "LANG") {
			cmd.Env = append(cmd.Env, variable)
		}
	}
	cmd.Env = append(cmd.Env, "LC_ALL=C")
	joinGroup(cmd, t.guard.group())
	t.account.runs(cmd)
	return cmd
}

// run starts the command and waits until the server answers. taken is what it says if another process has its port.
func (t *throwaway) run(ctx context.Context, s *Server, cmd *exec.Cmd, log io.Writer, taken string) error {
	p, err := launch(cmd, log)
	if err != nil {
		return err
	}
	t.process = p
	err = s.greet(ctx, p)
	if err != nil && strings.Contains(p.output.String(), taken) {
		return fmt.Errorf("%s: %w", s.address, errPortTaken)
	}
	return err
}

// close ends the program and removes its files, as far as its start had come.
func (t *throwaway) close(signal os.Signal, within time.Duration) error {
	var failures []error
	if t.process != nil {
		failures = append(failures, t.process.end(signal, within))
	}
	if t.dir != "" {
		failures = append(failures, os.RemoveAll(t.dir))
	}
	return errors.Join(append(failures, t.guard.dismiss())...)
}
