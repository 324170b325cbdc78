//go:build unix

package pgserver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// local is a server from this machine's binaries.
type local struct {
	throwaway
	bin      string // folder of initdb and postgres
	settings map[string]string
	log      io.Writer // gets the output of initdb and of the server, in tests
}

func startLocal(ctx context.Context, o Options) (*Server, error) {
	folders := findBinaries()
	if len(folders) == 0 {
		return nil, errors.New("PostgreSQL is not installed")
	}
	var failures []string
	for _, bin := range folders {
		server, err := (&local{bin: bin, settings: o.Settings}).start(ctx)
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

func (l *local) start(ctx context.Context) (s *Server, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, l.stop())
		}
	}()
	// What is not on a disk after a crash need not be on one before.
	if err := l.open(l.settings["fsync"] == "off"); err != nil {
		return nil, err
	}
	s = &Server{password: rand.Text(), origin: "from " + l.bin, halt: l.stop}
	s.reboot = func(ctx context.Context) error { return l.restart(ctx, s) }
	if err := l.initdb(ctx, s.password); err != nil {
		return nil, fmt.Errorf("initdb: %w", err)
	}
	err = s.onFreePort(func(int) error { return l.serve(ctx, s) })
	return s, err
}

// initdb makes the cluster. It has a password, because loopback alone does not keep out
// other users of the machine.
func (l *local) initdb(ctx context.Context, password string) error {
	file, err := l.write("password", password)
	if err != nil {
		return err
	}
	for _, locale := range []string{"C.UTF-8", "C"} { // not every system has the first
		cmd := l.command(ctx, filepath.Join(l.bin, "initdb"), "-D", l.data(), "-U", superuser, "--pwfile", file,
			"-A", "scram-sha-256", "-E", "UTF8", "--locale", locale, "--no-sync")
		// End its children too, which a kill would leave behind.
		cmd.Cancel = func() error { return syscall.Kill(-l.guard.group(), syscall.SIGTERM) }
		p, failed := launch(cmd, l.log)
		if failed != nil {
			return failed
		}
		if err = p.wait(); err == nil {
			return os.Remove(file)
		}
		if !strings.Contains(err.Error(), "locale") {
			break
		}
	}
	return err
}

// serve starts postgres on the server's address and waits for its first answer.
func (l *local) serve(ctx context.Context, s *Server) error {
	_, port, err := net.SplitHostPort(s.address)
	if err != nil {
		return err
	}
	args := serverArgs(l.settings, "listen_addresses="+loopback, "port="+port,
		"unix_socket_directories=") // none: a socket needs a folder, a short enough path and rights
	args = append([]string{"-D", l.data()}, args...)
	cmd := l.command(context.WithoutCancel(ctx), filepath.Join(l.bin, "postgres"), args...)
	return l.run(ctx, s, cmd, l.log, "could not bind")
}

// restart ends the process and starts another in the same process group, which the guard ends if
// our process is killed. It does not kill postgres if the shutdown takes long: what was left in memory would have
// to be recovered.
func (l *local) restart(ctx context.Context, s *Server) error {
	_ = l.process.cmd.Process.Signal(syscall.SIGINT) // a fast shutdown; fails if it has ended
	patient, cancel := context.WithTimeoutCause(ctx, readyWithin, fmt.Errorf("not shut down within %v", readyWithin))
	defer cancel()
	select {
	case <-l.process.exited:
	case <-patient.Done():
		return context.Cause(patient)
	}
	return onSamePort(ctx, func() error { return l.serve(ctx, s) })
}

// stop is an immediate shutdown: the files are removed, so there is nothing for a checkpoint to
// save, and postgres frees its shared memory all the same.
func (l *local) stop() error { return l.close(syscall.SIGQUIT, 10*time.Second) }

func (l *local) data() string { return filepath.Join(l.dir, "data") }
