package pgserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5"
)

// ErrNoBouncer: there is no PgBouncer on this machine.
var ErrNoBouncer = errors.New("no pgbouncer in PATH, nor in " + strings.Join(bouncerFolders, ", "))

// bouncerFolders are where packages put pgbouncer: folders that not every user has on the
// PATH.
var bouncerFolders = []string{"/usr/sbin", "/usr/local/sbin"}

// StartBouncer runs a throwaway PgBouncer in front of the server of that URL, for every
// database on it, and returns once a client can connect through it. The settings are
// those of the section [pgbouncer] of its file; they cannot change where it listens and
// whom it lets in.
//
// Like any [Server] it is on loopback and is gone with this process. It asks for the
// password that the server asks for, and describes itself with the server's version. The
// error is [ErrNoBouncer] if there is no PgBouncer to run.
func StartBouncer(ctx context.Context, url string, settings map[string]string) (*Server, error) {
	binary, err := findBouncer()
	if err != nil {
		return nil, fmt.Errorf("pgserver: %w", err)
	}
	behind, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("pgserver: %w", err)
	}
	b := &bouncer{binary: binary, behind: behind, settings: settings}
	s, err := b.start(ctx)
	if err != nil {
		return nil, fmt.Errorf("pgserver: %s: %w", binary, errors.Join(err, b.stop()))
	}
	return s, nil
}

func findBouncer() (string, error) {
	if path, err := exec.LookPath("pgbouncer"); err == nil {
		return filepath.Abs(path)
	}
	for _, folder := range bouncerFolders {
		if isExecutable(folder, "pgbouncer") {
			return filepath.Join(folder, "pgbouncer"), nil
		}
	}
	return "", ErrNoBouncer
}

type bouncer struct {
	binary   string
	behind   *pgx.ConnConfig
	settings map[string]string

	account *account // the user that it runs as, since it refuses root; nil: ours
	dir     string   // holds all its files
	guard   *guard
	process *process // nil until there is one
}

func (b *bouncer) start(ctx context.Context) (*Server, error) {
	var err error
	if b.account, err = unprivileged(); err != nil {
		return nil, err
	}
	if b.dir, err = b.account.tempDir(); err != nil {
		return nil, err
	}
	if b.guard, err = newGuard(cleanUpLocal, b.dir); err != nil {
		return nil, err
	}
	s := &Server{user: b.behind.User, password: b.behind.Password, first: b.behind.Database, origin: "from " + b.binary, halt: b.stop, stopping: make(chan struct{})}
	// Between the search for a free port and its use another process may take it.
	for range 5 {
		err = b.serve(ctx, s)
		if !errors.Is(err, errPortTaken) {
			break
		}
	}
	return s, err
}

func (b *bouncer) serve(ctx context.Context, s *Server) error {
	port, err := freePort()
	if err != nil {
		return err
	}
	s.address = onLoopback(port)
	file, err := b.configure(port)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), b.binary, file)
	cmd.Dir = b.dir
	joinGroup(cmd, b.guard.group())
	b.account.runs(cmd)
	if b.process, err = launch(cmd, nil); err != nil {
		return err
	}
	err = s.greet(ctx, b.process)
	if err != nil && strings.Contains(b.process.output.String(), "in use") {
		return fmt.Errorf("%s: %w", s.address, errPortTaken)
	}
	return err
}

// configure writes PgBouncer's files. It lets in clients that know the user's password,
// which other users of this machine do not, and connects to the server with the same
// password. Where the URL has no password, PgBouncer asks for none.
func (b *bouncer) configure(port int) (file string, err error) {
	users, file := filepath.Join(b.dir, "users"), filepath.Join(b.dir, "ini")
	auth, as := "scram-sha-256", ""
	if b.behind.Password == "" {
		auth, as = "any", " user="+inQuotes(b.behind.User, "'")
	}
	lines := []string{"[databases]", fmt.Sprintf("* = host=%s port=%d%s", inQuotes(b.behind.Host, "'"), b.behind.Port, as), "[pgbouncer]"}
	for name, value := range b.settings {
		lines = append(lines, name+" = "+value)
	}
	lines = append(lines, "listen_addr = "+loopback, fmt.Sprintf("listen_port = %d", port), "unix_socket_dir =",
		"auth_type = "+auth, "auth_file = "+users)
	if b.behind.TLSConfig != nil {
		lines = append(lines, "server_tls_sslmode = require")
	}
	for path, text := range map[string]string{
		users: inQuotes(b.behind.User, `"`) + " " + inQuotes(b.behind.Password, `"`),
		file:  strings.Join(lines, "\n"),
	} {
		if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
			return "", err
		}
		if err := b.account.own(path); err != nil {
			return "", err
		}
	}
	return file, nil
}

// stop kills it: it has nothing to save, and the signals that end it gently differ from
// version to version.
func (b *bouncer) stop() error {
	var failures []error
	if b.process != nil {
		failures = append(failures, b.process.end(os.Kill, readyWithin))
	}
	if b.dir != "" {
		failures = append(failures, os.RemoveAll(b.dir))
	}
	if b.guard != nil {
		failures = append(failures, b.guard.dismiss())
	}
	return errors.Join(failures...)
}

func inQuotes(text, quote string) string {
	return quote + strings.ReplaceAll(text, quote, quote+quote) + quote
}
