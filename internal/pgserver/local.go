package pgserver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
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

	account *account // whom it runs as; nil: as we do
	dir     string   // all that is its
	guard   *guard
	server  *process // nil until there is one
}

func startLocal(ctx context.Context, o Options) (*Server, error) {
	folders, looked := findBinaries(ctx)
	if len(folders) == 0 {
		return nil, fmt.Errorf("local binaries: no initdb and postgres in %s: install PostgreSQL", strings.Join(looked, ", "))
	}
	var failures []string
	for _, bin := range folders {
		l := &local{bin: bin, settings: o.Settings, log: o.Log, freePort: freePort}
		server, err := l.start(ctx)
		if err == nil {
			return server, nil
		}
		failures = append(failures, fmt.Sprintf("local binaries in %s: %v", bin, err))
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
	if l.dir, err = l.account.tempDir(); err != nil {
		return nil, err
	}
	if l.guard, err = newGuard(cleanUpLocal, l.dir); err != nil {
		return nil, err
	}
	s := &Server{password: rand.Text(), origin: "from " + l.bin, halt: l.stop}
	if err := l.initdb(ctx, s.password); err != nil {
		return nil, fmt.Errorf("initdb: %w", err)
	}
	// Between the search for a free port and its use somebody else may take it.
	for range 5 {
		err = l.serve(ctx, s)
		if !errors.Is(err, errPortTaken) {
			break
		}
	}
	return s, err
}

// initdb makes the cluster. The password keeps other users of the machine out,
// whom loopback alone would not.
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
		// Its children too, and no kill that would leave them.
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

// serve starts postgres and waits for its first answer.
func (l *local) serve(ctx context.Context, s *Server) error {
	port, err := l.freePort()
	if err != nil {
		return err
	}
	s.address = onLoopback(port)
	args := serverArgs(l.settings, "listen_addresses="+loopback, fmt.Sprintf("port=%d", port),
		"unix_socket_directories=") // none: nothing to find room, a short enough path and rights for
	cmd := l.command(context.WithoutCancel(ctx), "postgres", append([]string{"-D", l.data()}, args...)...)
	if l.server, err = launch(cmd, l.log); err != nil {
		return err
	}
	err = s.greet(ctx, l.server)
	if err != nil && strings.Contains(l.server.output.String(), "could not bind") {
		return fmt.Errorf("%s: %w", s.address, errPortTaken)
	}
	return err
}

// stop ends what runs and removes what is there, as far as start had come. An
// immediate shutdown is enough, and clean: the files go, so there is nothing for
// a checkpoint to save, and postgres gives its shared memory back all the same.
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

// command is a program of Postgres's, set up so that nothing of the caller's
// surroundings has a say: no PG* variable, no language, no unreachable folder.
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
