//go:build unix

package integration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/internal/pgserver"
	"github.com/pglimit/ratelimit/migrations"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// Tools for taking Postgres away from callers, and giving it back.

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

// crowd is callers who ask a limiter, each every few milliseconds, until it is sent home.
type crowd struct {
	limiter *pglimit.Limiter
	timeout time.Duration // of the limiter
	log     *listener     // what it logged

	came    time.Time
	goHome  context.CancelFunc
	work    sync.WaitGroup
	counts  []*count  // of each caller
	callers [][]asked // what each saw; read it when they are home
}

// count is how many answers a caller has had, whatever they were, and how many of them were decisions of Postgres's, of
// a lease or of memory.
type count struct {
	answers, served             atomic.Int64
	answersAtMark, servedAtMark int64
}

// asked is a request, and what came of it.
type asked struct {
	at       time.Time
	took     time.Duration
	decision pglimit.Decision
	err      error
	why      error // what the fallback was asked about, or err
}

func (a *asked) answered() time.Time { return a.at.Add(a.took) }

const crowdPace = 50 * time.Millisecond // a caller's, unless it waits for longer

// newCrowd of so many callers, who ask for so many keys.
func newCrowd(t *testing.T, pool *pgxpool.Pool, config pglimit.Config, callers, keys int) *crowd {
	t.Helper()
	c := &crowd{came: time.Now(), timeout: config.Timeout, log: &listener{}, counts: make([]*count, callers), callers: make([][]asked, callers)}
	if c.timeout == 0 {
		c.timeout = time.Second // as is documented
	}
	if config.Limit == (pglimit.Limit{}) {
		config.Limit = plenty
	}
	type why struct{}
	if onError := config.OnError; onError != nil {
		config.OnError = func(ctx context.Context, failed pglimit.Failure) (pglimit.Decision, error) {
			*ctx.Value(why{}).(*error) = failed.Err
			return onError(ctx, failed)
		}
	}
	c.limiter = newListened(t, pool, config, c.log)
	ctx, goHome := context.WithCancel(t.Context())
	c.goHome = goHome
	for i := range callers {
		c.counts[i] = new(count)
		c.work.Go(func() {
			pace := time.NewTicker(crowdPace)
			defer pace.Stop()
			for turn := i; ctx.Err() == nil; turn += callers {
				a := asked{at: time.Now()}
				a.decision, a.err = c.limiter.Allow(context.WithValue(context.WithoutCancel(ctx), why{}, &a.why), "key:"+strconv.Itoa(turn%keys))
				a.took, a.why = time.Since(a.at), cmp.Or(a.err, a.why)
				c.callers[i] = append(c.callers[i], a)
				c.counts[i].answers.Add(1)
				if a.err == nil && a.decision.Source != pglimit.FromFallback {
					c.counts[i].served.Add(1)
				}
				select {
				case <-pace.C:
				case <-ctx.Done():
				}
			}
		})
	}
	t.Cleanup(func() { c.home(t) })
	return c
}

// home sends the callers home, and closes the limiter.
func (c *crowd) home(t *testing.T) {
	c.goHome()
	c.work.Wait()
	must(t, c.limiter.Close(context.Background()))
}

// mark is where the next answered and served count from.
func mark(crowds ...*crowd) {
	for _, c := range crowds {
		for _, one := range c.counts {
			one.answersAtMark, one.servedAtMark = one.answers.Load(), one.served.Load()
		}
	}
}

// answered waits until each caller has had so many answers since the mark, whatever they are.
func (c *crowd) answered(t *testing.T, times int64) {
	t.Helper()
	until(t, "each caller is answered", func() bool {
		return !slices.ContainsFunc(c.counts, func(one *count) bool { return one.answers.Load() < one.answersAtMark+times })
	})
}

// served waits until each caller has had so many decisions since the mark, and Postgres is taken for alive.
func (c *crowd) served(t *testing.T, times int64) {
	t.Helper()
	until(t, "each caller is served", func() bool {
		return !slices.ContainsFunc(c.counts, func(one *count) bool { return one.served.Load() < one.servedAtMark+times })
	})
	until(t, "it is closed", func() bool { return c.limiter.Stats().Open == 0 })
}

// opens waits until Postgres is taken for gone.
func (c *crowd) opens(t *testing.T) {
	t.Helper()
	until(t, "it is open", func() bool { return c.limiter.Stats().Open == 1 })
}

// during is what was asked and answered from one time to another.
func (c *crowd) during(from, to time.Time) (all []asked) {
	for _, caller := range c.callers {
		for _, a := range caller {
			if !a.at.Before(from) && a.answered().Before(to) {
				all = append(all, a)
			}
		}
	}
	return all
}

// failures by cause, of the requests that failed.
func failures(all []asked) (by pglimit.ByCause) {
	for _, a := range all {
		if a.err != nil {
			by[pglimit.CauseOf(a.err)]++
		}
	}
	return by
}

// wantCounted compares what callers saw with what the limiter counted.
func (c *crowd) wantCounted(t *testing.T) {
	t.Helper()
	var failed, allowed, denied, fallback int64
	var by pglimit.ByCause
	for _, caller := range c.callers {
		seen := failures(caller)
		failed += seen.Total()
		for cause := range by {
			by[cause] += seen[cause]
		}
		for _, a := range caller {
			switch {
			case a.err != nil:
				continue
			case a.decision.Allowed:
				allowed++
			default:
				denied++
			}
			if a.decision.Source == pglimit.FromFallback {
				fallback++
			}
		}
	}
	s := c.limiter.Stats()
	if s.Allowed.Total() != allowed || s.Denied.Total() != denied || s.Failed.Total() != failed+fallback || fallback == 0 && s.Failed != by || s.Waiting != 0 || s.Canceled != 0 {
		t.Errorf("callers saw %d allowed, %d denied, %d from fallback, and failures %v; the limiter counted %+v", allowed, denied, fallback, by, s)
	}
}

// listener remembers what is logged.
type listener struct {
	mu    sync.Mutex
	lines []line
}

type line struct {
	level slog.Level
	text  string // the message, and the cause if it has one
}

func (l *listener) Enabled(context.Context, slog.Level) bool { return true }
func (l *listener) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *listener) WithGroup(string) slog.Handler            { return l }

func (l *listener) Handle(_ context.Context, record slog.Record) error {
	text := record.Message
	record.Attrs(func(a slog.Attr) bool {
		if a.Key == "cause" {
			text += ": " + a.Value.String()
		}
		return true
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, line{record.Level, text})
	return nil
}

// heard is how often each line was logged.
func (l *listener) heard() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	times := make(map[string]int)
	for _, one := range l.lines {
		times[one.level.String()+" "+strings.TrimPrefix(one.text, "pglimit: ")]++
	}
	return times
}

const (
	opened = "WARN Postgres does not answer; until it does, requests fail at once"
	closed = "INFO Postgres answers again"
)

// newListened is a limiter whose log is listened to.
func newListened(t *testing.T, pool *pgxpool.Pool, config pglimit.Config, log *listener) *pglimit.Limiter {
	t.Helper()
	config.Logger = slog.New(log)
	limiter, err := pglimit.New(pool, strategies.TokenBucket{}, config)
	must(t, err)
	return limiter
}

func second[T any](_ T, err error) error { return err }
