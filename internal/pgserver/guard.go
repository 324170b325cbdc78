package pgserver

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
)

// guard is a shell that cleans up if this process is killed before it could. The shell
// reads from a pipe whose other end only this process holds; the kernel closes that end
// however the process dies. The shell leads the process group that the server is in.
type guard struct {
	process *process
	pipe    io.WriteCloser
}

// guardScript ends at once when a line dismisses it; at end of file it cleans up. It
// ignores the signals that it sends to its own group, and those of a terminal.
const guardScript = `trap '' HUP INT QUIT TERM; read -r dismissed && exit; `

// cleanUpLocal is what the guard of a local server does: an immediate shutdown, and the
// removal of the folder, tried for 10 s because dying processes may still write there. A server may have been stopped.
const cleanUpLocal = `kill -QUIT 0; kill -CONT 0; n=0; until rm -rf "$1" || [ $n -ge 100 ]; do n=$((n+1)); sleep 0.1; done`

const cleanUpDocker = `exec docker rm -f -v "$1"`

// newGuard starts a guard. It returns nil on systems that have none.
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

func (g *guard) group() int {
	if g == nil {
		return 0
	}
	return g.process.cmd.Process.Pid
}

func (g *guard) dismiss() error {
	if g == nil {
		return nil
	}
	_, err := io.WriteString(g.pipe, "done\n")
	// The guard may be gone once it has read the line, and our end closed with it.
	if closing := g.pipe.Close(); err == nil && !errors.Is(closing, os.ErrClosed) {
		err = closing
	}
	<-g.process.exited
	if err != nil {
		return fmt.Errorf("the guard of the server: %w", err)
	}
	return nil
}
