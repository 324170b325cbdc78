//go:build unix

package integration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/internal/pgserver"
	"github.com/pglimit/ratelimit/migrations"
	"github.com/pglimit/ratelimit/pglimit"
)

// patient is a server of the test's own, whose processes it may stop.
type patient struct {
	*pgserver.Server
	data  string // its data directory
	group int    // the process group that pgserver ends, if we do not
}

// newPatient starts a migrated server, and skips where there is none on this machine.
func newPatient(t *testing.T, settings map[string]string) *patient {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a server, and takes it away")
	}
	all := map[string]string{"fsync": "off"}
	maps.Copy(all, settings)
	server, err := pgserver.Start(t.Context(), pgserver.Options{From: []pgserver.Source{pgserver.Local, pgserver.Embedded}, Settings: all})
	if err != nil {
		t.Skipf("no server of its own: %v", err)
	}
	t.Cleanup(func() { must(t, server.Stop()) })
	pool, err := pgxpool.New(t.Context(), server.URL(""))
	must(t, err)
	defer pool.Close()
	must(t, migrations.Up(t.Context(), pool, migrations.WithoutExclusionRange()))
	p := &patient{Server: server, data: query[string](t, pool, "show data_directory")}
	p.group, err = syscall.Getpgid(p.postmaster(t))
	must(t, err)
	return p
}

// postmaster is the process that started all others of the server.
func (p *patient) postmaster(t *testing.T) int {
	t.Helper()
	file, err := os.ReadFile(filepath.Join(p.data, "postmaster.pid"))
	must(t, err)
	line, _, _ := strings.Cut(string(file), "\n")
	pid, err := strconv.Atoi(line)
	must(t, err)
	return pid
}

// stop is a fast shutdown, after which connections are refused.
func (p *patient) stop(t *testing.T) {
	t.Helper()
	must(t, syscall.Kill(p.postmaster(t), syscall.SIGINT))
	until(t, "the server has stopped", func() bool {
		_, err := os.Stat(filepath.Join(p.data, "postmaster.pid"))
		return errors.Is(err, os.ErrNotExist) // it removes that last
	})
}

var argument = regexp.MustCompile(`"([^"]*)"`)

// start it again, as it was started before, and return as soon as it lets somebody in.
func (p *patient) start(t *testing.T) {
	t.Helper()
	binary, args := p.started(t)
	cmd := p.command(t, binary, args...)
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGQUIT)
		_ = cmd.Wait()
	})
	answers(t, p.URL(""))
}

// started is how it was started.
func (p *patient) started(t *testing.T) (binary string, args []string) {
	t.Helper()
	options, err := os.ReadFile(filepath.Join(p.data, "postmaster.opts"))
	must(t, err)
	binary, rest, _ := strings.Cut(string(options), " ")
	for _, found := range argument.FindAllStringSubmatch(rest, -1) {
		args = append(args, found[1])
	}
	return binary, args
}

// command is a program of Postgres, in the server's process group, and as its user.
func (p *patient) command(t *testing.T, binary string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(binary, args...)
	cmd.Dir = p.data
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pgid: p.group}
	info, err := os.Stat(p.data)
	must(t, err)
	if owner := info.Sys().(*syscall.Stat_t); os.Geteuid() == 0 { // as whom it refuses to run
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: owner.Uid, Gid: owner.Gid}
	}
	return cmd
}

// answers waits until the server lets somebody in.
func answers(t *testing.T, url string) {
	t.Helper()
	pool := newPool(t, url, 1)
	until(t, "the server is back", func() bool { return pool.Ping(t.Context()) == nil })
}

// freeze stops every process of the server where it is: connections stay open, new ones are
// accepted by the kernel, and nobody answers. thaw lets them go on.
func (p *patient) freeze(t *testing.T) (thaw func()) {
	t.Helper()
	pid := p.postmaster(t)
	must(t, syscall.Kill(pid, syscall.SIGSTOP)) // first: then it starts no more
	processes := append([]int{pid}, children(t, pid)...)
	for _, one := range processes[1:] {
		_ = syscall.Kill(one, syscall.SIGSTOP) // one may have ended meanwhile
	}
	thaw = sync.OnceFunc(func() {
		for _, one := range processes {
			_ = syscall.Kill(one, syscall.SIGCONT)
		}
	})
	t.Cleanup(thaw) // also where the test ends before
	return thaw
}

func children(t *testing.T, of int) (pids []int) {
	t.Helper()
	table, err := exec.Command("ps", "-A", "-o", "pid=", "-o", "ppid=").Output()
	if err != nil {
		_ = syscall.Kill(of, syscall.SIGCONT)
		t.Skipf("nothing to list processes by: %v", err)
	}
	for line := range strings.Lines(string(table)) {
		var pid, parent int
		if _, err := fmt.Sscan(line, &pid, &parent); err == nil && parent == of {
			pids = append(pids, pid)
		}
	}
	return pids
}

// counted is a pool that counts the connections that it tried to open.
func (p *patient) counted(t *testing.T, maxConns int32) (pool *pgxpool.Pool, dials *atomic.Int64) {
	t.Helper()
	config, err := pgxpool.ParseConfig(p.URL(""))
	must(t, err)
	config.MaxConns = maxConns
	dials = new(atomic.Int64)
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		dials.Add(1)
		return dial(ctx, network, address)
	}
	pool, err = pgxpool.NewWithConfig(t.Context(), config)
	must(t, err)
	t.Cleanup(pool.Close)
	return pool, dials
}

// plenty is a limit that denies nobody.
var plenty = pglimit.PerSecond(1_000_000).WithBurst(1_000_000)

func second[T any](_ T, err error) error { return err }
