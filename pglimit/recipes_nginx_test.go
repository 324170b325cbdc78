package pglimit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
)

// counts of requests that come at once: served, refused, and still waiting.
type counts struct{ served, refused, waiting int }

// A real nginx, where one is installed: of requests that come at once it serves, delays and refuses as many as the
// recipe does. At one request per minute it does not matter how fast this machine is.
func TestRecipeBesideNginx(t *testing.T) {
	t.Parallel()
	binary, err := exec.LookPath("nginx")
	if err != nil {
		t.Skipf("%v: apt-get install nginx-light", err)
	}
	cases := []struct {
		burst, delay int64
		flags        string
		requests     int
		want         counts
	}{
		{0, 0, "", 4, counts{1, 3, 0}},
		{5, 0, "burst=5", 8, counts{1, 2, 5}},
		{5, 5, "burst=5 nodelay", 8, counts{6, 2, 0}},
		{12, 8, "burst=12 delay=8", 15, counts{9, 2, 4}},
	}
	dir := t.TempDir()
	config := ""
	for i, c := range cases {
		config += fmt.Sprintf("limit_req_zone all zone=z%d:32k rate=1r/m;\n", i)
		config += fmt.Sprintf("server { listen unix:%s/%d; root %s; location / { limit_req zone=z%d %s; } }\n", dir, i, dir, i, c.flags)
	}
	startNginx(t, binary, dir, config)
	for i, c := range cases {
		limit, maxWait := nginx(pglimit.PerMinute(1), c.burst, c.delay)
		_, limiter := recipe(t, limit)
		var ours counts
		for _, d := range delays(t, limiter, c.requests, maxWait) {
			switch {
			case d == refused:
				ours.refused++
			case d > 0:
				ours.waiting++
			default:
				ours.served++
			}
		}
		theirs := askNginx(t, fmt.Sprintf("%s/%d", dir, i), c.requests, c.want)
		if theirs != c.want || ours != c.want {
			t.Errorf("%q: nginx %+v, the recipe %+v, want %+v", c.flags, theirs, ours, c.want)
		}
	}
}

// startNginx starts one process, which ends with the test.
func startNginx(t *testing.T, binary, dir, config string) {
	t.Helper()
	config = fmt.Sprintf(`daemon off; master_process off; pid %[1]s/pid; error_log %[1]s/error.log;
events {}
http {
access_log off; client_body_temp_path %[1]s/body; proxy_temp_path %[1]s/proxy; fastcgi_temp_path %[1]s/fastcgi; uwsgi_temp_path %[1]s/uwsgi; scgi_temp_path %[1]s/scgi;
%[2]s}
`, dir, config)
	for name, text := range map[string]string{"conf": config, "index.html": "fine"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(binary, "-c", filepath.Join(dir, "conf"), "-p", dir, "-e", filepath.Join(dir, "error.log"))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	for {
		conn, err := net.Dial("unix", dir+"/0")
		if err == nil {
			_ = conn.Close()
			return
		}
		select {
		case err := <-ended:
			log, _ := os.ReadFile(filepath.Join(dir, "error.log"))
			t.Fatalf("nginx has ended: %v: %s", err, log)
		case <-time.After(time.Millisecond):
		}
	}
}

// askNginx sends requests at once. Those that have no answer when all others have theirs are waiting.
func askNginx(t *testing.T, socket string, requests int, want counts) (got counts) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}, DisableKeepAlives: true}}
	codes := make(chan int, requests)
	for range requests {
		go func() {
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://nginx/", http.NoBody)
			if err != nil {
				t.Error(err)
				return
			}
			response, err := client.Do(request)
			if err != nil {
				if !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				codes <- 0
				return
			}
			_, _ = io.Copy(io.Discard, response.Body)
			_ = response.Body.Close()
			codes <- response.StatusCode
		}()
	}
	for n := 1; n <= requests; n++ {
		switch <-codes {
		case http.StatusOK:
			got.served++
		case http.StatusServiceUnavailable:
			got.refused++
		case 0:
			got.waiting++
		}
		if n == want.served+want.refused {
			cancel()
		}
	}
	return got
}
