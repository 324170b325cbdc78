package pgserver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// local is a server from this machine's binaries.
type local struct {
	bin      string // folder of initdb and postgres
	settings map[string]string
	log      io.Writer
	freePort func() (int, error)

	account *account // the user that it runs as; nil: ours
	dir     string   // holds all its files
	guard   *guard
	server  *process // nil until there is one
}

func startLocal(ctx context.Context, o Options) (*Server, error) {
	folders := findBinaries(ctx)
	if len(folders) == 0 {
		return nil, errors.New("PostgreSQL is not installed")
	}
	var failures []string
	for _, bin := range folders {
		l := &local{bin: bin, settings: o.Settings, log: o.Log, freePort: freePort}
		server, err := l.start(ctx)
		if err == nil {
			return server, nil
		}
		failures = append(failures, fmt.Sprintf("%s: %v", bin, err))
		if ctx.Err() != nil {
			break
		}
	}
	return nil, errors.New(strings.Join(failures, "; "))
}

func (l *local) start(ctx context.Context) (server *Server, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, l.stop())
		}
	}()
	if l.account, err = unprivileged(); err != nil {
		return nil, err
	}
	if l.settings["fsync"] == "off" { // what is not on a disk after a crash need not be on one before
		l.dir = l.account.memoryDir()
	}
	if l.dir == "" {
		if l.dir, err = l.account.tempDir(); err != nil {
			return nil, err
		}
	}
	if l.guard, err = newGuard(cleanUpLocal, l.dir); err != nil {
		return nil, err
	}
	s := &Server{password: rand.Text(), origin: "from " + l.bin, halt: l.stop, reboot: l.restart, stopping: make(chan struct{})}
	if err := l.initdb(ctx, s.password); err != nil {
		return nil, fmt.Errorf("initdb: %w", err)
	}
	// Between the search for a free port and its use another process may take it.
	for range 5 {
		var port int
		if port, err = l.freePort(); err != nil {
			return nil, err
		}
		s.address = onLoopback(port)
		err = l.serve(ctx, s)
		if !errors.Is(err, errPortTaken) {
			break
		}
	}
	return s, err
}

// initdb makes the cluster. It has a password, because loopback alone does not keep out
// other users of the machine.
func (l *local) initdb(ctx context.Context, password string) error {
	file := filepath.Join(l.dir, "password")
	if err := os.WriteFile(file, []byte(password+"\n"), 0o600); err != nil {
		return err
	}
	if err := l.account.own(file); err != nil {
		return err
	}
	var err error
	for _, locale := range []string{"C.UTF-8", "C"} { // not every system has the first
		cmd := l.command(ctx, "initdb", "-D", l.data(), "-U", superuser, "--pwfile", file,
			"-A", "scram-sha-256", "-E", "UTF8", "--locale", locale, "--no-sync")
		// End its children too, which a kill would leave behind.
		cmd.Cancel = func() error { return signalGroup(l.guard.group(), terminate) }
		if _, err = run(cmd, l.log); err == nil {
			return os.Remove(file)
		}
		if !strings.Contains(err.Error(), "locale") {
			break
		}
	}
	return err
}

var errPortTaken = errors.New("the port is taken")

// serve starts postgres on the server's address and waits for its first answer.
func (l *local) serve(ctx context.Context, s *Server) error {
	_, port, err := net.SplitHostPort(s.address)
	if err != nil {
		return err
	}
	args := serverArgs(l.settings, "listen_addresses="+loopback, "port="+port,
		"unix_socket_directories=") // none: a socket needs a folder, a short enough path and rights
	cmd := l.command(context.WithoutCancel(ctx), "postgres", append([]string{"-D", l.data()}, args...)...)
	launched, err := launch(cmd, l.log)
	if err != nil {
		return err
	}
	l.server = launched
	err = s.greet(ctx, l.server)
	if err != nil && strings.Contains(l.server.output.String(), "could not bind") {
		return fmt.Errorf("%s: %w", s.address, errPortTaken)
	}
	return err
}

// stop ends the server and removes its files, as far as start had come. An immediate
// shutdown is enough: the files are removed, so there is nothing for a checkpoint to
// save, and postgres frees its shared memory all the same.
func (l *local) stop() error {
	var failures []error
	if l.server != nil {
		failures = append(failures, l.server.end(quit, 10*time.Second))
	}
	if l.dir != "" {
		failures = append(failures, os.RemoveAll(l.dir))
	}
	if l.guard != nil {
		failures = append(failures, l.guard.dismiss())
	}
	return errors.Join(failures...)
}

func (l *local) data() string { return filepath.Join(l.dir, "data") }

// command is a program of Postgres, which must not depend on the caller's surroundings:
// it gets no PG* variable, no language, and a folder that its account can reach.
func (l *local) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(l.bin, name), args...)
	cmd.Dir = l.dir
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "PG") && !strings.HasPrefix(variable, "LC_") && !strings.HasPrefix(variable, "LANG") {
			cmd.Env = append(cmd.Env, variable)
		}
	}
	cmd.Env = append(cmd.Env, "LC_ALL=C")
	joinGroup(cmd, l.guard.group())
	l.account.runs(cmd)
	return cmd
}
