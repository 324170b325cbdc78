package integration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/modules/postgres"

	"github.com/pglimit/ratelimit/internal/pgserver"
)

const (
	engineWithin = 10 * time.Second // to say that it is well
	pullWithin   = time.Minute
)

// startContainer is the rung of Docker. That the engine is well does not mean that
// an image can be had, so that is asked for before anything is created.
func startContainer(ctx context.Context) (_ *testServer, err error) {
	defer func() {
		if odd := recover(); odd != nil { // testcontainers panics at some settings of an engine
			err = fmt.Errorf("testcontainers: %v", odd)
		}
	}()
	image := cmp.Or(os.Getenv(envImage), pgserver.DefaultImage)
	if err := haveImage(ctx, image); err != nil {
		return nil, err
	}
	s, err := runContainer(ctx, image)
	if err == nil {
		removeOnSignal(s.halt)
	}
	return s, err
}

// runContainer runs a server of an image that the engine has.
func runContainer(ctx context.Context, image string) (*testServer, error) {
	var args []string
	for name, value := range serverSettings {
		args = append(args, "-c", name+"="+value)
	}
	const data = "/in-memory" // as pgserver has it, and no volume of the image's
	container, err := postgres.Run(ctx, image, testcontainers.WithCmdArgs(args...), postgres.BasicWaitStrategies(),
		testcontainers.WithTmpfs(map[string]string{data: "rw"}), testcontainers.WithEnv(map[string]string{"PGDATA": data + "/data"}))
	remove := func() error { return testcontainers.TerminateContainer(container, testcontainers.StopTimeout(0)) }
	if err != nil {
		return nil, errors.Join(fmt.Errorf("a container of %s: %w", image, err), remove())
	}
	url, err := container.ConnectionString(ctx, "sslmode=disable")
	if err != nil {
		return nil, errors.Join(err, remove())
	}
	return &testServer{url: url, what: "in a container of " + image, halt: remove, container: container}, nil
}

// haveImage returns once the engine has the image.
func haveImage(ctx context.Context, image string) error {
	provider, err := testcontainers.NewDockerProvider()
	if err != nil {
		return fmt.Errorf("no engine: %w", err)
	}
	defer func() { _ = provider.Close() }()
	short, cancel := context.WithTimeout(ctx, engineWithin)
	defer cancel()
	if err := provider.Health(short); err != nil {
		return fmt.Errorf("the engine is not well: %w", err)
	}
	if _, err := provider.Client().ImageInspect(short, image); err == nil {
		return nil
	}
	long, cancel := context.WithTimeout(ctx, pullWithin)
	defer cancel()
	if err := provider.PullImage(long, image); err != nil {
		return fmt.Errorf("the image %s is not there and cannot be pulled within %v: %w", image, pullWithin, err)
	}
	return nil
}

// removeOnSignal removes the container where the tests are interrupted: its reaper
// may be switched off. (A server of local binaries sees to that by itself.)
func removeOnSignal(remove func() error) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		received := <-signals
		if err := remove(); err != nil {
			fmt.Fprintln(os.Stderr, "integration:", err)
		}
		code := 1
		if number, ok := received.(syscall.Signal); ok {
			code = 128 + int(number)
		}
		os.Exit(code)
	}()
}
