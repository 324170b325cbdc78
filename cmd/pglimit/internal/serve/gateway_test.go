package serve

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
)

// asks is a request of a gateway's, with these names and values of header fields.
func gatewayAsks(query string, header ...string) *http.Request {
	r := request(http.MethodGet, gatewayPath+query, "")
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	return r
}

func TestAGatewayAsks(t *testing.T) {
	inBubble(t, limits, func(b bench) {
		ask := func(query string) *httptest.ResponseRecorder {
			return b.answers(gatewayAsks(query, "X-Pglimit-Limiter", "login", "X-Pglimit-Key", "ann"))
		}
		for _, left := range []string{"1;t=30", "0;t=30"} {
			w := ask("")
			if h := w.Header(); w.Code != 200 || w.Body.Len() != 0 || h.Get("RateLimit") != `"login";r=`+left || h.Get("RateLimit-Policy") != `"login";q=2;w=60` ||
				h.Get("Cache-Control") != "no-store" || h.Get("Retry-After") != "" {
				b.Errorf("%d %v %s", w.Code, h, w.Body)
			}
		}
		for query, status := range map[string]int{"": 429, "?denied=429": 429, "?denied=403": 403} {
			w := ask(query)
			isProblem(b.T, w, status, "", "try again in 30 s")
			if h := w.Header(); h.Get("RateLimit") != `"login";r=0;t=30` || h.Get("RateLimit-Policy") == "" || h.Get("Retry-After") != "30" {
				b.Errorf("%v", h)
			}
		}
		b.memory.Fail(pglimit.ErrUnavailable)
		w := b.answers(gatewayAsks("", "X-Pglimit-Limiter", "login", "X-Pglimit-Key", "ben"))
		isProblem(b.T, w, 503, "", "not known at present")
	})
}

// Whatever is missing or wrong, nothing passes, and a client of the gateway learns nothing of the server behind it.
func TestAGatewayThatAsksWrongly(t *testing.T) {
	t.Parallel()
	const token, limiter, key = "0123456789abcdef", "X-Pglimit-Limiter", "X-Pglimit-Key"
	s := newServer(t, limits, pglimittest.Memory(), token)
	for name, test := range map[string]struct {
		r      *http.Request
		status int
		words  string
	}{
		"no key":         {gatewayAsks("", limiter, "api"), 400, "key must be in the header field X-Pglimit-Key, once"},
		"an empty key":   {gatewayAsks("", limiter, "api", key, ""), 400, "once"},
		"two keys":       {gatewayAsks("", limiter, "api", key, "a", key, "b"), 400, "once"},
		"no text":        {gatewayAsks("", limiter, "api", key, "\xff"), 400, "not valid UTF-8"},
		"a long key":     {gatewayAsks("", limiter, "api", key, strings.Repeat("k", 1025)), 400, "1025 bytes"},
		"no limiter":     {gatewayAsks("", key, "k"), 500, "not set up properly"},
		"two limiters":   {gatewayAsks("", limiter, "api", limiter, "login", key, "k"), 500, "not set up properly"},
		"a wrong one":    {gatewayAsks("", limiter, "apii", key, "k"), 500, "not set up properly"},
		"another query":  {gatewayAsks("?key=k", limiter, "api", key, "k"), 500, "not set up properly"},
		"another status": {gatewayAsks("?denied=200", limiter, "api", key, "k"), 500, "not set up properly"},
		"another method": {request(http.MethodPost, gatewayPath, "{}"), 500, "not set up properly"},
		"a wrong token":  {gatewayAsks("", limiter, "api", key, "k", "Authorization", "Bearer wrong"), 500, "not set up properly"},
		"all is well":    {gatewayAsks("", limiter, "api", key, "k"), 200, ""},
		"HEAD":           {gatewayAsks("", limiter, "api", key, "k"), 200, ""},
	} {
		if test.r.Header.Get("Authorization") == "" {
			test.r.Header.Set("Authorization", "Bearer "+token)
		}
		if name == "HEAD" {
			test.r.Method = name
		}
		w := s.answers(test.r)
		if w.Code != test.status || !strings.Contains(w.Body.String(), test.words) || w.Header().Get("WWW-Authenticate") != "" || strings.Contains(w.Body.String(), "login") {
			t.Errorf("%s: %d %v %s", name, w.Code, w.Header(), w.Body)
		}
	}
}

// blockOf the page of gateways in that language.
func blockOf(t *testing.T, language string) string {
	t.Helper()
	page, err := os.ReadFile("../../../../docs/gateways.md")
	must(t, err)
	found := regexp.MustCompile("(?s)```" + language + "\n(.*?)```").FindSubmatch(page)
	if found == nil {
		t.Fatalf("docs/gateways.md has no block of %s", language)
	}
	return string(found[1])
}

// The recipes of docs/gateways.md work with what Debian has.
func TestGatewaysOfTheDocs(t *testing.T) {
	t.Parallel()
	for name, gateway := range map[string]struct {
		files func(folder string) map[string]string // the first is the one that it is started with
		args  []string
		down  int // the status while pglimit serve is down
	}{
		"nginx": {func(folder string) map[string]string {
			return map[string]string{"conf": fmt.Sprintf("daemon off; master_process off; pid %[1]s/pid; error_log %[1]s/error.log;\nevents {}\n"+
				"http { access_log off; client_body_temp_path %[1]s/b; proxy_temp_path %[1]s/p; fastcgi_temp_path %[1]s/f; uwsgi_temp_path %[1]s/u; scgi_temp_path %[1]s/s;\n%[2]s}\n", folder, blockOf(t, "nginx"))}
		}, []string{"-c"}, 500},
		"haproxy": {func(string) map[string]string {
			return map[string]string{"conf": blockOf(t, "haproxy"), "pglimit.lua": blockOf(t, "lua")}
		}, []string{"-db", "-f"}, 503},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			binary, err := exec.LookPath(name)
			if err != nil {
				if binary = "/usr/sbin/" + name; !isFile(binary) {
					t.Skipf("there is no %s on this machine: apt-get install %[1]s", name)
				}
			}
			var served atomic.Int64
			app := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served.Add(1) }))
			defer app.Close()
			s := newServer(t, "limiters: {api: {limit: 2/1h}}", pglimittest.MemoryOn(time.Now))
			s.loopback = true
			limiter := httptest.NewServer(s)
			defer limiter.Close()

			folder, address := t.TempDir(), freeAddress(t)
			for file, text := range gateway.files(folder) {
				text = strings.NewReplacer("127.0.0.1:9000", app.Listener.Addr().String(), "127.0.0.1:8080", limiter.Listener.Addr().String(),
					"/etc/haproxy/pglimit.lua", folder+"/pglimit.lua", "listen 80;", "listen "+address+";", "bind :80", "bind "+address).Replace(text)
				must(t, os.WriteFile(filepath.Join(folder, file), []byte(text), 0o600))
			}
			ctx, stop := context.WithCancel(t.Context())
			command := exec.CommandContext(ctx, binary, append(gateway.args, folder+"/conf")...)
			var said strings.Builder
			command.Stdout, command.Stderr = &said, &said
			must(t, command.Start())
			ended := make(chan error, 1)
			go func() { ended <- command.Wait() }()
			defer func() {
				stop()
				<-ended //nolint:errcheck // it was stopped
			}()
			eventually(t, func() bool {
				select {
				case err := <-ended:
					ended <- err
					t.Fatalf("%v: %s", err, said.String())
				default:
				}
				conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
				if err != nil {
					return false
				}
				return conn.Close() == nil
			})
			get := func(path string) (status int, header http.Header) {
				r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+path, strings.NewReader("a body"))
				must(t, err)
				r.Header.Set("X-Pglimit-Key", "forged")
				r.Header.Set("X-Pglimit-Limiter", "forged")
				answer, err := http.DefaultClient.Do(r)
				must(t, err)
				_ = answer.Body.Close()
				return answer.StatusCode, answer.Header
			}
			for n, want := range []struct {
				status      int
				rate, retry string
			}{{200, `"api";r=1;t=1800`, ""}, {200, `"api";r=0;t=1800`, ""}, {429, `"api";r=0;t=`, "1"}, {429, `"api";r=0;t=`, "1"}} {
				status, h := get("/some/path?limiter=x")
				if status != want.status || !strings.HasPrefix(h.Get("RateLimit"), want.rate) || h.Get("RateLimit-Policy") != `"api";q=2;w=3600` ||
					!strings.HasPrefix(h.Get("Retry-After"), want.retry) || (h.Get("Retry-After") == "") != (want.retry == "") {
					t.Errorf("request %d: %d %v", n, status, h)
				}
			}
			if served.Load() != 2 {
				t.Errorf("%d requests reached the app, not 2", served.Load())
			}
			if name == "nginx" {
				if status, _ := get("/_pglimit"); status != 404 {
					t.Errorf("a client asks by itself, and is answered %d", status)
				}
			}
			limiter.Close()
			if status, _ := get("/"); status != gateway.down || served.Load() != 2 {
				t.Errorf("while nobody decides: %d, and %d requests reached the app", status, served.Load())
			}
		})
	}
}

func isFile(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.Mode().IsRegular()
}

// freeAddress is one on which nobody listens yet.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	defer listener.Close() //nolint:errcheck // it was only to find a port
	return listener.Addr().String()
}
