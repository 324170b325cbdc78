package pgserver

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
)

// guard is a shell that waits beside us and cleans up if we are killed before we
// could: it reads from a pipe of which only we hold the other end, and the kernel
// closes that however we die. It leads the process group that the server is in.
type guard struct {
	process *process
	pipe    io.WriteCloser
}

// guardScript ends at once when dismissed by a line; at end of file it cleans up.
// The signals that it sends to its group, or a terminal might, are not for itself.
const guardScript = `trap '' HUP INT QUIT TERM; read -r dismissed && exit; `

// cleanUpLocal is what the guard of a local server does: an immediate shutdown, and
// away with the folder, in which the dying may write a little longer.
const cleanUpLocal = `kill -QUIT 0; n=0; until rm -rf "$1" || [ $n -ge 100 ]; do n=$((n+1)); sleep 0.1; done`

// cleanUpDocker is what the guard of a container does.
const cleanUpDocker = `exec docker rm -f -v "$1"`

// newGuard is nil where there is no guard.
func newGuard(cleanUp, what string) (*guard, error) {
	if !hasGuard {
		return nil, nil
	}
	cmd := exec.Command("/bin/sh", "-c", guardScript+cleanUp, "sh", what)
	joinGroup(cmd, 0)
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	process, err := launch(cmd, nil)
	if err != nil {
		return nil, err
	}
	return &guard{process, pipe}, nil
}

// group is the process group that the guard leads.
func (g *guard) group() int {
	if g == nil {
		return 0
	}
	return g.process.cmd.Process.Pid
}

// dismiss ends a guard whose work is done.
func (g *guard) dismiss() error {
	if g == nil {
		return nil
	}
	_, err := io.WriteString(g.pipe, "done\n")
	// Once the guard has read the line it may be gone, and our end closed with it.
	if closing := g.pipe.Close(); err == nil && !errors.Is(closing, os.ErrClosed) {
		err = closing
	}
	<-g.process.exited
	if err != nil {
		return fmt.Errorf("the guard of the server: %w", err)
	}
	return nil
}
