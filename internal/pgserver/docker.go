package pgserver

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// Label is on every container of this package. To find containers that were left behind
// after all: `docker ps --filter label=pglimit.throwaway`.
const Label = "pglimit.throwaway"

const (
	engineWithin = 10 * time.Second // for the engine's first answer
	pullWithin   = 3 * time.Minute
)

// container is a server in a container. The docker command that starts it stays attached: it
// shows the server's output, and ends when the server does.
type container struct {
	name, image string
	log         io.Writer // gets the output of the server, in tests
	guard       *guard
	server      *process // nil until there is one
}

func startDocker(ctx context.Context, o Options) (*Server, error) {
	return newContainer(DefaultImage).start(ctx, o.Settings)
}

func newContainer(image string) *container {
	return &container{name: "pglimit-" + strings.ToLower(rand.Text()), image: image}
}

// haveImage returns nil once the engine answers and has the image.
func haveImage(ctx context.Context, image string) error {
	if _, err := exec.LookPath("docker"); err != nil {
		return errors.New("no docker command in PATH")
	}
	short, cancel := context.WithTimeoutCause(ctx, engineWithin, fmt.Errorf("no answer within %v", engineWithin))
	defer cancel()
	if _, err := docker(short, "version", "--format", "{{.Server.Version}}"); err != nil {
		return fmt.Errorf("the engine does not answer: %w", err)
	}
	if _, err := docker(short, "image", "inspect", "--format", "{{.Id}}", image); err == nil {
		return nil
	}
	long, cancel := context.WithTimeoutCause(ctx, pullWithin, fmt.Errorf("not done within %v", pullWithin))
	defer cancel()
	if _, err := docker(long, "pull", "--quiet", image); err != nil {
		return fmt.Errorf("the image %s is not there and cannot be pulled: %w", image, err)
	}
	return nil
}

func (c *container) start(ctx context.Context, settings map[string]string) (s *Server, err error) {
	if err := haveImage(ctx, c.image); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("docker: a container of %s: %w", c.image, errors.Join(err, c.stop()))
		}
	}()
	if c.guard, err = newGuard(cleanUpDocker, c.name); err != nil {
		return nil, err
	}
	s = &Server{password: rand.Text(), origin: "in a container of " + c.image, halt: c.stop}
	s.reboot = func(ctx context.Context) error { return c.restart(ctx, s) }
	err = s.onFreePort(func(int) error {
		err := c.serve(ctx, s, settings)
		if errors.Is(err, errPortTaken) {
			if failed := c.remove(); failed != nil {
				return failed
			}
		}
		return err
	})
	return s, err
}

// serve creates the container and waits for the server's first answer. The port is chosen here,
// and not by the engine, which would choose another one when the container is restarted.
//
// There is no --rm: the engine may take a restart for the end, and remove the container.
func (c *container) serve(ctx context.Context, s *Server, settings map[string]string) error {
	args := []string{
		"create", "--name", c.name, "--label", Label,
		"--publish", s.address + ":5432", "--shm-size", "256m",
		"--stop-signal", "SIGINT", // a fast shutdown, which not every image asks for
		"--env", "POSTGRES_PASSWORD", // its value comes from the environment: every user can see the arguments
		c.image, "postgres",
	}
	// Not given up halfway: what the engine then creates nobody would remove.
	creating, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), readyWithin, fmt.Errorf("not created within %v", readyWithin))
	defer cancel()
	cmd := dockerCommand(creating, append(args, serverArgs(settings)...)...)
	cmd.Env = append(os.Environ(), "POSTGRES_PASSWORD="+s.password)
	if _, err := run(cmd); err != nil {
		return cmp.Or(context.Cause(creating), err)
	}
	return c.run(ctx, s)
}

// run starts the server in the container and waits for its first answer. While the image
// initialises, its server listens on a socket inside only: an answer on the port comes from the
// final server.
func (c *container) run(ctx context.Context, s *Server) error {
	cmd := dockerCommand(context.WithoutCancel(ctx), "start", "--attach", c.name)
	launched, err := launch(cmd, c.log)
	if err != nil {
		return err
	}
	c.server = launched
	err = s.greet(ctx, c.server)
	if words := c.server.output.String(); err != nil && (strings.Contains(words, "already allocated") || strings.Contains(words, "already in use")) {
		return fmt.Errorf("%s: %w", s.address, errPortTaken)
	}
	return err
}

// stop removes the container and the volume with its data, without a shutdown: nobody
// needs the data.
func (c *container) stop() error {
	return errors.Join(c.remove(), c.guard.dismiss())
}

func (c *container) remove() error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), readyWithin, fmt.Errorf("not removed within %v", readyWithin))
	defer cancel()
	for {
		_, err := docker(ctx, "rm", "--force", "--volumes", c.name)
		if err == nil || strings.Contains(err.Error(), "No such container") { // some engines say so, others do not
			break
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("container %s: %w: %w", c.name, context.Cause(ctx), err)
		case <-time.After(50 * time.Millisecond): // the engine may be busy with it
		}
	}
	if c.server == nil {
		return nil
	}
	select {
	case <-c.server.exited: // with the container
		return nil
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("container %s: %w", c.name, context.Cause(ctx)), c.server.end(os.Kill, 0))
	}
}

// restart shuts the server down and starts it again in its container.
func (c *container) restart(ctx context.Context, s *Server) error {
	seconds := strconv.Itoa(int(readyWithin.Seconds()))
	if _, err := docker(ctx, "stop", "-t", seconds, c.name); err != nil {
		return err
	}
	select {
	case <-c.server.exited:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return onSamePort(ctx, func() error { return c.run(ctx, s) })
}

// docker runs the docker command to its end and returns what it printed.
func docker(ctx context.Context, args ...string) (string, error) {
	out, err := run(dockerCommand(ctx, args...))
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return "", cause
	}
	return out, err
}

// dockerCommand is a command that does not receive the terminal's Ctrl-C, which docker
// start would pass on to the server.
func dockerCommand(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "docker", args...)
	joinGroup(cmd, 0)
	return cmd
}
