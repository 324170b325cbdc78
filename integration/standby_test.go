//go:build unix

package integration

import (
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// A pool was connected to a standby, behind the one address that clients have. The address is given to the
// primary, and later to the standby again, which is promoted. Callers are served at once, and before that they are
// told why they are not. So is an operator. A pool that knows both servers is served all the time.
func TestAFailover(t *testing.T) {
	t.Parallel()
	primary := newPatient(t, nil)
	execute(t, newPool(t, primary.URL(""), 1), "select pglimit.set_limit('api', '1/s', note => 'default')")
	standby := primary.standby(t)
	wantOperatorsToldOfAStandby(t, standby)

	url, point := newAddress(t, standby)
	var all []*users
	for _, open := range pools {
		all = append(all, newUsers(t, 4, 200, open(t, url, many)))
	}
	for _, u := range all {
		u.awaitReadOnly(t)
	}
	all = append(all, newUsers(t, 4, 200, onPool(t, onHost(t, with(standby, "target_session_attrs", "read-write"), hostOf(t, standby)+","+hostOf(t, primary.URL(""))), many)))
	point(primary.URL(""))
	for _, u := range all {
		u.await(t, 100)
	}
	primary.stop(t)
	admin := newPool(t, standby, 1)
	execute(t, admin, "select pg_promote()")
	point(standby)
	for _, u := range all {
		u.await(t, 100)
	}
}

// What would change the schema says of a standby that it is one, and what to do. What serves is not ready.
func wantOperatorsToldOfAStandby(t *testing.T, standby string) {
	t.Helper()
	c := cli{builtCLI(t), []string{"DATABASE_URL=" + standby}}
	for _, args := range []string{"storage unlogged", "migrate up", "migrate down --to 1"} {
		r := c.run(t, strings.Fields(args)...).exits(t, 2)
		if want := "pglimit: cannot begin a transaction: ERROR: cannot set transaction read-write mode during recovery (SQLSTATE 0A000): " +
			"this server is a standby, which cannot be changed: connect to the primary (several hosts in the URL, and target_session_attrs=read-write)\n"; r.stderr != want {
			t.Errorf("%s says %s, want %s", args, r.stderr, want)
		}
	}
	c.run(t, "storage").exits(t, 0)
	c.run(t, "cleanup", "--once").fails(t, "is read-only", "connect to the primary")
	process, wait := c.started(t, "cannot execute INSERT", "cleanup", "--metrics", "127.0.0.1:0")
	must(t, process.Signal(syscall.SIGTERM))
	if code, said := wait(); code != 0 || !strings.Contains(said, "is read-only") || !strings.Contains(said, "connect to the primary") {
		t.Errorf("%d %s", code, said)
	}
	c.run(t, "limits", "set", "api", "--limit", "2/s", "--note", "why").fails(t, "read-only")
	c.run(t, "limits", "explain", "api", "k").exits(t, 0).prints(t, "enforce 1/s")
	limits := pglimit.LimitsFrom(newPool(t, standby, 2), pglimit.LimitsConfig{})
	limiter := newLimiter(t, newPool(t, standby, 2), strategies.TokenBucket{}, pglimit.Config{Name: "api", Limit: hours, Limits: limits})
	if d, err := limiter.Peek(t.Context(), "k"); err != nil || d.Limit != pglimit.PerSecond(1) {
		t.Errorf("%+v, %v", d, err)
	}
	must(t, limiter.Close(t.Context()))

	process, url, wait := c.serves(t, "--config", limitersFile(t, "{api: {limit: 1/1m}}"), "--drain", "0")
	status, answer, err := sends(t, url+"/readyz", "")
	for err == nil && strings.Contains(answer, `"cause":"timeout"`) { // the server is slow, which is another answer
		status, answer, err = sends(t, url+"/readyz", "")
	}
	if err != nil || status != http.StatusServiceUnavailable || !strings.Contains(answer, "it is a standby") {
		t.Errorf("%d %s %v", status, answer, err)
	}
	must(t, process.Signal(syscall.SIGTERM))
	wait()
}

// standby is another server, which follows this one. It skips where there is no pg_basebackup.
func (p *patient) standby(t *testing.T) (address string) {
	t.Helper()
	binary, args := p.started(t)
	backup, err := filepath.Glob(filepath.Join(filepath.Dir(binary), "pg_basebackup"))
	must(t, err)
	if backup == nil {
		t.Skip("there is no pg_basebackup")
	}
	data, to := filepath.Join(filepath.Dir(p.data), "standby"), freeAddress(t)
	out, err := p.command(t, backup[0], "-d", p.URL(""), "-D", data, "-R", "-c", "fast", "--no-sync").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	_, port, err := net.SplitHostPort(to)
	must(t, err)
	for i := range args {
		if args[i] == p.data {
			args[i] = data
		} else if strings.HasPrefix(args[i], "port=") {
			args[i] = "port=" + port
		}
	}
	if !slices.Contains(args, data) {
		t.Fatalf("%q does not name %s", args, p.data)
	}
	cmd := p.command(t, binary, args...)
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGQUIT)
		_ = cmd.Wait()
	})
	address = onHost(t, p.URL(""), to)
	answers(t, address)
	return address
}

func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}

func onHost(t *testing.T, of, host string) string {
	t.Helper()
	return strings.Replace(of, "@"+hostOf(t, of), "@"+host, 1)
}

func hostOf(t *testing.T, address string) string {
	t.Helper()
	u, err := url.Parse(address)
	must(t, err)
	return u.Host
}

// newAddress is an address of the server, until it is pointed to another: new connections are to that then.
func newAddress(t *testing.T, of string) (at string, point func(to string)) {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	var host atomic.Pointer[string]
	point = func(to string) {
		of := hostOf(t, to)
		host.Store(&of)
	}
	point(of)
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := new(net.Dialer).Dial("tcp", *host.Load())
			if err != nil {
				_ = client.Close()
				continue
			}
			for from, to := range map[net.Conn]net.Conn{client: server, server: client} {
				go func() {
					_, _ = io.Copy(to, from)
					_ = to.Close()
				}()
			}
		}
	}()
	return onHost(t, of, listener.Addr().String()), point
}
