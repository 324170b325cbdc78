package pgserver

import (
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

// container is a server in a container. Its docker run stays attached: it shows
// the server's output, and ends when the container does.
type container struct {
	name  string
	log   io.Writer
	guard *guard
	run   *process // nil until there is one
}

func startDocker(ctx context.Context, o Options) (*Server, error) {
	if err := haveImage(ctx, o.Image, o.Log); err != nil {
		return nil, fmt.Errorf("docker: %w", err)
	}
	c := &container{name: "pglimit-" + strings.ToLower(rand.Text()), log: o.Log}
	server, err := c.start(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("docker: a container of %s: %w", o.Image, errors.Join(err, c.stop()))
	}
	return server, nil
}

// haveImage returns nil once the engine answers and has the image.
func haveImage(ctx context.Context, image string, log io.Writer) error {
	if _, err := exec.LookPath("docker"); err != nil {
		return errors.New("no docker command in PATH")
	}
	short, cancel := context.WithTimeoutCause(ctx, engineWithin, fmt.Errorf("no answer within %v", engineWithin))
	defer cancel()
	if _, err := docker(short, log, "version", "--format", "{{.Server.Version}}"); err != nil {
		return fmt.Errorf("the engine does not answer: %w", err)
	}
	if _, err := docker(short, nil, "image", "inspect", "--format", "{{.Id}}", image); err == nil {
		return nil
	}
	long, cancel := context.WithTimeoutCause(ctx, pullWithin, fmt.Errorf("not done within %v", pullWithin))
	defer cancel()
	if _, err := docker(long, log, "pull", "--quiet", image); err != nil {
		return fmt.Errorf("the image %s is not there and cannot be pulled: %w", image, err)
	}
	return nil
}

func (c *container) start(ctx context.Context, o Options) (*Server, error) {
	var err error
	if c.guard, err = newGuard(cleanUpDocker, c.name); err != nil {
		return nil, err
	}
	s := &Server{
		password: rand.Text(), origin: "in a container of " + o.Image, halt: c.stop, reboot: c.restart, stopping: make(chan struct{}),
	}
	// Between the search for a free port and its use another process may take it.
	for range 5 {
		if err = c.serve(ctx, s, o); !errors.Is(err, errPortTaken) {
			break
		}
		if err := c.remove(); err != nil {
			return nil, err
		}
	}
	return s, err
}

// serve creates the container and waits for the server's first answer. The port is chosen here,
// and not by the engine, which would choose another one when the container is restarted.
func (c *container) serve(ctx context.Context, s *Server, o Options) error {
	port, err := freePort()
	if err != nil {
		return err
	}
	args := []string{
		"run", "--rm", "--name", c.name, "--label", Label,
		"--publish", onLoopback(port) + ":5432", "--shm-size", "256m",
		"--stop-signal", "SIGINT", // a fast shutdown, which not every image asks for
		"--env", "POSTGRES_PASSWORD", // its value comes from the environment: every user can see the arguments
		o.Image, "postgres",
	}
	cmd := dockerCommand(context.WithoutCancel(ctx), append(args, serverArgs(o.Settings)...)...)
	cmd.Env = append(os.Environ(), "POSTGRES_PASSWORD="+s.password)
	if c.run, err = launch(cmd, c.log); err != nil {
		return err
	}
	if s.address, err = c.port(ctx); err != nil {
		return err
	}
	// While the image initialises, its server listens on a socket inside only: an answer
	// on the port comes from the final server.
	return s.greet(ctx, c.run)
}

// port waits until the engine has published the server's port, and returns its address.
func (c *container) port(ctx context.Context) (address string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, readyWithin, fmt.Errorf("not created within %v", readyWithin))
	defer cancel()
	for {
		ports, err := docker(ctx, nil, "port", c.name, "5432/tcp")
		if err == nil && ports != "" {
			first, _, _ := strings.Cut(ports, "\n")
			return first, nil
		}
		select {
		case <-c.run.exited:
			words := c.run.output.String()
			if strings.Contains(words, "already allocated") || strings.Contains(words, "already in use") {
				return "", errPortTaken
			}
			return "", errors.New(c.run.lastWords())
		case <-ctx.Done():
			return "", context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// stop removes the container and the volume with its data, without a shutdown: nobody
// needs the data. It tries again if docker run has not created the container yet.
func (c *container) stop() error {
	var failures []error
	if c.run != nil {
		failures = append(failures, c.remove())
	}
	if c.guard != nil {
		failures = append(failures, c.guard.dismiss())
	}
	return errors.Join(failures...)
}

func (c *container) remove() error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), readyWithin, fmt.Errorf("not removed within %v", readyWithin))
	defer cancel()
	for {
		_, err := docker(ctx, nil, "rm", "--force", "--volumes", c.name)
		select {
		case <-c.run.exited:
			return nil // with --rm, the container goes before docker run returns
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("container %s: %w", c.name, context.Cause(ctx)), err, c.run.end(os.Kill, 0))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// restart lets the engine stop and start the container, whose docker run stays: it ends when the
// container is removed. What the server prints from then on is not in the log.
func (c *container) restart(ctx context.Context, s *Server) error {
	seconds := strconv.Itoa(int(readyWithin.Seconds()))
	if _, err := docker(ctx, c.log, "restart", "--time", seconds, c.name); err != nil {
		return err
	}
	if address, err := c.port(ctx); err != nil || address != s.address {
		return fmt.Errorf("the engine published port %q, and before it was %q (a server of this machine's own binaries keeps its port): %w", address, s.address, err)
	}
	return s.greet(ctx, c.run)
}

// docker runs the docker command to its end and returns what it printed.
func docker(ctx context.Context, log io.Writer, args ...string) (string, error) {
	out, err := run(dockerCommand(ctx, args...), log)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return "", cause
	}
	return out, err
}

// dockerCommand is a command that does not receive the terminal's Ctrl-C, which docker
// run would pass on to the server.
func dockerCommand(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "docker", args...)
	joinGroup(cmd, 0)
	return cmd
}
