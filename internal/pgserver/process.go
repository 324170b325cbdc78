package pgserver

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// process is a command that runs while we do something else.
type process struct {
	cmd    *exec.Cmd
	output *tail
	exited chan struct{} // closed when it, and every process that writes to its output, has ended
	err    error         // of cmd.Wait, once exited
}

// launch starts the command. log gets its output, too, unless it is nil: in tests.
func launch(cmd *exec.Cmd, log io.Writer) (*process, error) {
	p := &process{cmd: cmd, output: &tail{log: log}, exited: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = p.output, p.output
	if cmd.WaitDelay == 0 {
		cmd.WaitDelay = 10 * time.Second
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		p.err = cmd.Wait()
		close(p.exited)
	}()
	return p, nil
}

// run runs the command to its end and returns what it printed.
func run(cmd *exec.Cmd) (string, error) {
	p, err := launch(cmd, nil)
	if err != nil {
		return "", err
	}
	err = p.wait()
	return strings.TrimSpace(p.output.String()), err
}

// wait for its end. An error quotes the last words of the output.
func (p *process) wait() error {
	<-p.exited
	if p.err != nil {
		return errors.New(p.lastWords())
	}
	return nil
}

// end sends the signal and, if the process has not ended in time, kills it.
func (p *process) end(signal os.Signal, within time.Duration) error {
	if err := p.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.exited:
		return nil
	case <-time.After(within):
	}
	err := p.cmd.Process.Kill()
	<-p.exited
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// lastWords says why an ended process ended, as far as its output tells.
func (p *process) lastWords() string {
	if words := p.output.lastWords(); words != "" {
		return words
	}
	if p.err != nil {
		return p.err.Error()
	}
	return "it said nothing"
}

// tail passes its input on to log and remembers the last tailBytes of it.
type tail struct {
	log io.Writer // nil: nobody listens
	mu  sync.Mutex
	end []byte
}

const tailBytes = 8 << 10

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end = append(t.end, b...)
	if over := len(t.end) - tailBytes; over > 0 {
		t.end = append(t.end[:0], t.end[over:]...)
	}
	if t.log != nil {
		return t.log.Write(b)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.end)
}

// lastWords returns the first line that says what was fatal or an error, because the
// cause comes before its consequences; else the last line.
func (t *tail) lastWords() (words string) {
	for line := range strings.Lines(t.String()) {
		line = strings.TrimSpace(line)
		if strings.Contains(line, "database system is starting up") {
			continue // the answer to clients that ask too early
		}
		for _, mark := range []string{"FATAL:", "PANIC:", "error:", "Error", "docker:"} {
			if _, what, found := strings.Cut(line, mark); found {
				return strings.TrimSpace(what)
			}
		}
		if line != "" {
			words = line
		}
	}
	return words
}
