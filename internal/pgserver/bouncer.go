//go:build unix

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
	s := &Server{
		user: behind.User, password: behind.Password, first: behind.Database, origin: "from " + binary, halt: b.stop,
	}
	if err = b.open(false); err == nil {
		err = s.onFreePort(func(port int) error { return b.serve(ctx, s, port) })
	}
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
	throwaway
	binary   string
	behind   *pgx.ConnConfig
	settings map[string]string
}

func (b *bouncer) serve(ctx context.Context, s *Server, port int) error {
	file, err := b.configure(port)
	if err != nil {
		return err
	}
	return b.run(ctx, s, b.command(context.WithoutCancel(ctx), b.binary, file), nil, "in use")
}

// configure writes PgBouncer's files. It lets in clients that know the user's password,
// which other users of this machine do not, and connects to the server with the same
// password. Where the URL has no password, PgBouncer asks for none.
func (b *bouncer) configure(port int) (file string, err error) {
	users, err := b.write("users", inQuotes(b.behind.User, `"`)+" "+inQuotes(b.behind.Password, `"`))
	if err != nil {
		return "", err
	}
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
	return b.write("ini", strings.Join(lines, "\n"))
}

// stop kills it: it has nothing to save, and the signals that end it gently differ from
// version to version.
func (b *bouncer) stop() error { return b.close(os.Kill, readyWithin) }

func inQuotes(text, quote string) string {
	return quote + strings.ReplaceAll(text, quote, quote+quote) + quote
}
