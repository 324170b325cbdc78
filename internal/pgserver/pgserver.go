// Package pgserver runs a throwaway PostgreSQL, for tests and for "pglimit bench"
// without a database; and for tests, a PgBouncer in front of one.
//
// A server belongs to the process that started it. It is on loopback, behind a
// random password. [Server.Stop] leaves no process, no container and no file, and
// on Unix the same happens if this process is killed. A terminal's Ctrl-C does not
// reach the server, so a program that catches Ctrl-C can still query it before
// Stop. [Server.Restart] keeps its address and its data.
package pgserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// Source says where the server's program comes from.
type Source string

const (
	// Local: initdb and postgres of this machine. They refuse to run as root: if this
	// process is root, they run as the user postgres, or else as nobody.
	Local Source = "local"

	// Docker: a container, through the docker command.
	Docker Source = "docker"

	// Embedded: as Local, with binaries from Maven Central, or from the mirror that
	// [EnvRepository] names. They are fetched once, into this user's cache, or for root
	// into /var/cache.
	Embedded Source = "embedded"
)

// EnvSource forces Embedded, where it is among the sources; any other value refuses it.
const EnvSource = "PGLIMIT_TEST_POSTGRES"

// DefaultImage is the image of a [Docker] server. It is pulled if it is not there.
const DefaultImage = "postgres:17-alpine"

// readyWithin is how long a server has from its start to its first answer.
const readyWithin = time.Minute

// Options of a throwaway server. The zero value of each field is its default.
type Options struct {
	// From these sources, in order. Nil: Local, Docker, Embedded.
	From []Source

	// Settings of the server, as in postgresql.conf: "max_connections": "400". They
	// must not say where it listens. Nil: Postgres's own defaults, which are durable. With
	// fsync off the files of a Local or Embedded server are in memory, if Linux has 2 GiB there.
	Settings map[string]string

	// Notice is told what is fetched, before it is. Nil: stderr is.
	Notice func(string)
}

// Server is a running throwaway. Its methods are safe for concurrent use.
type Server struct {
	address  string // host:port
	user     string // empty: the superuser
	password string
	first    string // a database that is there. Empty: the superuser's
	version  string // 17.6
	origin   string // "from /usr/lib/postgresql/17/bin"
	halt     func() error
	reboot   func(context.Context) error // nil: it cannot be restarted
	changing sync.Mutex                  // held by Restart and by Stop
	stopped  bool
	halted   error // of Stop
}

// Start runs a server and returns once it answers. The context bounds the start, not
// the server's life, which the caller must end with [Server.Stop]. After an error
// nothing is left running. The error names every source that was tried and why it
// failed, and says what to do.
func Start(ctx context.Context, o Options) (*Server, error) {
	var failures []string
	for _, source := range o.sources() {
		start := starters[source]
		if start == nil {
			return nil, fmt.Errorf("pgserver: Options.From has %q: it must be %q, %q or %q", source, Local, Docker, Embedded)
		}
		server, err := start(ctx, o)
		if err == nil {
			return server, nil
		}
		if cause := context.Cause(ctx); cause != nil {
			return nil, fmt.Errorf("pgserver: the start was given up: %w", cause)
		}
		failures = append(failures, err.Error())
	}
	return nil, fmt.Errorf("no Postgres can be started (%s): install PostgreSQL or Docker", strings.Join(failures, "; "))
}

var starters = map[Source]func(context.Context, Options) (*Server, error){
	Local:    startLocal,
	Docker:   startDocker,
	Embedded: startEmbedded,
}

// sources in the order in which they are tried, as the tester's environment has it.
func (o Options) sources() []Source {
	sources := o.From
	if sources == nil {
		sources = []Source{Local, Docker, Embedded}
	}
	forced := Source(os.Getenv(EnvSource))
	if forced == "" || len(sources) == 1 || !slices.Contains(sources, Embedded) {
		return sources
	}
	return slices.DeleteFunc(slices.Clone(sources), func(s Source) bool { return (s == Embedded) != (forced == Embedded) })
}

func (o Options) notice(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	if o.Notice == nil {
		fmt.Fprintln(os.Stderr, line)
		return
	}
	o.Notice(line)
}

// URL of a database on the server, for its superuser. Empty: the database postgres.
// (Behind a PgBouncer: user and database of the URL that [StartBouncer] was given.)
func (s *Server) URL(database string) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword(cmp.Or(s.user, superuser), s.password),
		Host:     s.address,
		Path:     "/" + cmp.Or(database, s.first, superuser),
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// Describe says what runs and where, in words: "PostgreSQL 15.18 from
// /usr/lib/postgresql/15/bin, a throwaway on 127.0.0.1:40123".
func (s *Server) Describe() string {
	return fmt.Sprintf("PostgreSQL %s %s, a throwaway on %s", s.version, s.origin, s.address)
}

// Origin says where the server's program comes from: "from /usr/lib/postgresql/17/bin",
// "in a container of postgres:17-alpine".
func (s *Server) Origin() string { return s.origin }

// Stop ends the server, even if clients are connected, and removes all its files. If a Restart is under way,
// Stop waits for it. Calling Stop again does nothing and returns the same.
func (s *Server) Stop() error {
	s.changing.Lock()
	defer s.changing.Unlock()
	if !s.stopped {
		s.stopped = true
		s.halted = s.halt()
	}
	return s.halted
}

// Restart shuts the server down and starts it again, with the same address, settings and data,
// and returns once it answers. Until then connections are refused.
//
// It is a fast shutdown: clients are disconnected and what they had under way is rolled back. What was committed is
// kept, and so are the statistics and unlogged tables. It is not a crash (unless a container takes longer than a minute
// to shut down: then the engine kills it).
//
// The context bounds it. After an error the server may be up or down; it can be restarted again,
// and must be stopped. Of two calls at once, one waits for the other. It returns an error for a PgBouncer,
// and after Stop.
func (s *Server) Restart(ctx context.Context) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	var err error
	switch {
	case s.stopped:
		err = errors.New("it was stopped")
	case s.reboot == nil:
		err = errors.New("a PgBouncer cannot be restarted")
	default:
		err = s.reboot(ctx)
	}
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	if err != nil {
		return fmt.Errorf("pgserver: the restart: %w", err)
	}
	return nil
}

// superuser is the superuser's name, and also that of its database.
const superuser = "postgres"

// greet connects as soon as the server lets us in, and notes its version. It gives up
// when the server's process ends. An answer on the port is not enough: a server that does
// not know the password is somebody else's.
func (s *Server) greet(ctx context.Context, server *process) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyWithin, fmt.Errorf("it is not ready within %v", readyWithin))
	defer cancel()
	// If the server has ended, another program may have its port and never answer.
	alive, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-server.exited:
			cancel()
		case <-alive.Done():
		}
	}()
	for {
		err := s.readVersion(alive)
		if err == nil {
			return nil
		}
		select {
		case <-server.exited:
			return fmt.Errorf("it ended: %s", server.lastWords())
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (s *Server) readVersion(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.URL(""))
	if err != nil {
		return err
	}
	if s.version == "" { // after a restart it is known, and somebody may be reading it
		s.version, _, _ = strings.Cut(conn.PgConn().ParameterStatus("server_version"), " ")
	}
	return conn.Close(ctx)
}

// serverArgs returns the arguments of postgres: the settings in order, then ours, because
// the last value of a setting counts.
func serverArgs(settings map[string]string, ours ...string) []string {
	var args []string
	for name, value := range settings {
		args = append(args, name+"="+value)
	}
	slices.Sort(args)
	args = append(args, ours...)
	withFlags := make([]string, 0, 2*len(args))
	for _, arg := range args {
		withFlags = append(withFlags, "-c", arg)
	}
	return withFlags
}

var errPortTaken = errors.New("the port is taken")

// onFreePort gives the server the address of a port that was free a moment ago, and starts it. If another process
// has taken the port meanwhile, it tries another one.
func (s *Server) onFreePort(start func(port int) error) (err error) {
	for range 5 {
		var port int
		if port, err = freePort(); err != nil {
			return err
		}
		s.address = onLoopback(port)
		if err = start(port); !errors.Is(err, errPortTaken) {
			return err
		}
	}
	return err
}

// onSamePort starts a server at the address that it had. Another process may have its port for a
// moment: perhaps it looks for a free port too.
func onSamePort(ctx context.Context, start func() error) (err error) {
	for range 50 {
		if err = start(); !errors.Is(err, errPortTaken) {
			return err
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
	return err
}

// freePort returns a port that was free a moment ago.
func freePort() (int, error) {
	listener, err := net.Listen("tcp", loopback+":0")
	if err != nil {
		return 0, err
	}
	port := listener.Addr().(*net.TCPAddr).Port
	return port, listener.Close()
}

const loopback = "127.0.0.1"

func onLoopback(port int) string { return net.JoinHostPort(loopback, strconv.Itoa(port)) }
