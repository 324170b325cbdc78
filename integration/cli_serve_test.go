package integration

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
)

var listens = regexp.MustCompile(`serve started" listen=(\S+)`)

// serves starts the server on a free port.
func (c cli) serves(t *testing.T, args ...string) (process *os.Process, url string, wait func() (code int, stderr string)) {
	t.Helper()
	process, url, _, wait = c.servesAndSays(t, args...)
	return process, url, wait
}

// limitersFile is a file for --config with these limiters.
func limitersFile(t *testing.T, limiters string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "limits.yaml")
	must(t, os.WriteFile(name, []byte("limiters: "+limiters+"\n"), 0o600))
	return name
}

// servesAndSays is serves; said returns its stderr up to now.
func (c cli) servesAndSays(t *testing.T, args ...string) (process *os.Process, url string, said func() string, wait func() (code int, stderr string)) {
	t.Helper()
	log := filepath.Join(t.TempDir(), "log")
	file, err := os.Create(log)
	must(t, err)
	command := c.command(t.Context(), t, c.binary, append([]string{"serve", "--listen", "127.0.0.1:0"}, args...)...)
	command.Stderr = file
	must(t, command.Start())
	must(t, file.Close())
	ended := make(chan struct{})
	go func() {
		_ = command.Wait() // its error is the exit code
		close(ended)
	}()
	t.Cleanup(func() {
		_ = command.Process.Kill()
		<-ended
	})
	said = func() string {
		text, err := os.ReadFile(log)
		must(t, err)
		return string(text)
	}
	var found []string
	until(t, "it starts", func() bool { found = listens.FindStringSubmatch(said()); return found != nil })
	return command.Process, "http://" + found[1], said, func() (int, string) {
		<-ended
		return command.ProcessState.ExitCode(), said()
	}
}

// sends a POST with JSON, or a GET if the body is empty.
func sends(t *testing.T, url, body string) (status int, answer string, err error) {
	t.Helper()
	method := http.MethodPost
	if body == "" {
		method = http.MethodGet
	}
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	r.Header.Set("Content-Type", "application/json")
	got, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = got.Body.Close() }()
	text, err := io.ReadAll(got.Body)
	return got.StatusCode, string(text), err
}

// Clients that stop coming once readiness fails, as a load balancer's do, get an answer to each
// request, and what the server has leased is given back.
func cliServesUntilSIGTERM(t *testing.T, c cli) {
	c, pool := c.onMigrated(t)
	config := filepath.Join(t.TempDir(), "limits.yaml")
	must(t, os.WriteFile(config, []byte("limiters:\n  api: {limit: 100000/36500day, leases: true, lease_ttl: 10s, timeout: 10s}\n"), 0o600))
	process, url, wait := c.serves(t, "--config", config, "--drain", "5s") // in which clients notice, on a busy machine too
	for status := 0; status != http.StatusOK; {
		var err error
		status, _, err = sends(t, url+"/readyz", "")
		must(t, err)
	}

	var granted, leased atomic.Int64
	var clients sync.WaitGroup
	var leave atomic.Bool
	for range 8 {
		clients.Go(func() {
			for !leave.Load() {
				status, answer, err := sends(t, url+"/v1/allow", `{"limiter":"api","key":"ann"}`)
				var d struct {
					Granted int64  `json:"granted"`
					Source  string `json:"source"`
				}
				if err != nil || status != http.StatusOK || json.Unmarshal([]byte(answer), &d) != nil {
					t.Errorf("%d %s %v", status, answer, err)
					return
				}
				granted.Add(d.Granted)
				if d.Source == "lease" {
					leased.Add(1)
				}
			}
		})
	}
	until(t, "tokens are leased", func() bool { return leased.Load() >= 100 || t.Failed() })
	must(t, process.Signal(syscall.SIGTERM))
	for status := http.StatusOK; status == http.StatusOK; {
		var err error
		status, _, err = sends(t, url+"/readyz", "")
		must(t, err)
	}
	leave.Store(true)
	clients.Wait()
	code, stderr := wait()
	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	lines = slices.DeleteFunc(lines, func(line string) bool { // on a busy machine
		return strings.Contains(line, "pglimit: the limits cannot be read")
	})
	rest := strings.Join(lines, "\n")
	if code != 0 || !strings.Contains(lines[len(lines)-1], "pglimit serve stopped") || strings.Contains(rest, "level=WARN") || strings.Contains(rest, "level=ERROR") {
		t.Errorf("exit code %d\n%s", code, stderr)
	}
	// A token takes nine hours to come back, and one may have since.
	answer := c.run(t, "peek", "ann", "--limiter", "api", "--limit", "100000/36500day", "--output", "json").exits(t, 0)
	var left struct{ Remaining int64 }
	must(t, json.Unmarshal([]byte(answer.stdout), &left))
	if used := 100000 - left.Remaining; used != granted.Load() || leased.Load() == 0 {
		t.Errorf("clients were granted %d, and Postgres says %d (%d came from leases)", granted.Load(), used, leased.Load())
	}
	leavesNoSession(t, pool)
}

// SIGHUP reads the files again, without a request lost. Bad ones change nothing.
func cliServeReadsItsFilesAgain(t *testing.T, c cli) {
	c, _ = c.onMigrated(t)
	dir := t.TempDir()
	config, tokens := filepath.Join(dir, "limits.yaml"), filepath.Join(dir, "tokens")
	write := func(name, text string) { must(t, os.WriteFile(name, []byte(text), 0o600)) }
	write(config, "limiters:\n  old: {limit: 2/1h, timeout: 30s}\n")
	write(tokens, "0123456789abcdef\n")
	process, url, said, wait := c.servesAndSays(t, "--config", config, "--token-file", tokens, "--drain", "0s")
	asked := func(token, limiter string) (status int) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/allow", strings.NewReader(`{"limiter":"`+limiter+`","key":"k"}`))
		must(t, err)
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Authorization", "Bearer "+token)
		got, err := http.DefaultClient.Do(r)
		must(t, err)
		must(t, got.Body.Close())
		return got.StatusCode
	}
	hup := func(says string) {
		t.Helper()
		before := strings.Count(said(), says)
		must(t, process.Signal(syscall.SIGHUP))
		until(t, "it says "+says, func() bool { return strings.Count(said(), says) > before })
	}
	wants := func(token, limiter string, status int) {
		t.Helper()
		if got := asked(token, limiter); got != status {
			t.Errorf("%s: %d, not %d", limiter, got, status)
		}
	}
	const first, second = "0123456789abcdef", "fedcba9876543210"
	wants(first, "old", http.StatusOK)
	write(config, "limiters:\n  bad: {limit: 5/fortnight}\n")
	write(tokens, second+"\n")
	hup("nothing is changed")
	wants(first, "old", http.StatusOK)
	write(config, "limiters:\n  new: {limit: 5/1h, timeout: 30s}\n")
	write(tokens, "short\n")
	hup("nothing is changed")
	wants(first, "old", http.StatusOK)
	if strings.Contains(said(), "read again") {
		t.Errorf("it says that it has read bad files:\n%s", said())
	}
	write(tokens, second+" decide limiters=new\n")
	hup("read again")
	wants(second, "new", http.StatusOK)
	wants(second, "old", http.StatusForbidden)
	wants(first, "new", http.StatusUnauthorized)
	if stderr := endsSoonBy(t, process, wait, syscall.SIGTERM, 0); !strings.Contains(stderr, "fortnight") || !strings.Contains(stderr, "at least 16 characters") {
		t.Errorf("it says\n%s", stderr)
	}
}

func cliServeStartsWithoutDatabase(t *testing.T, c cli) {
	c, pool := c.on(t)
	config := filepath.Join(t.TempDir(), "limits.yaml")
	must(t, os.WriteFile(config, []byte("limiters:\n  api: {limit: 1/1m, timeout: 30s}\n"), 0o600))
	process, url, wait := c.serves(t, "--config", config, "--no-cleanup", "--drain", "0")
	until(t, "it says what to do", func() bool { // on a busy machine the first connection may take too long
		status, answer, err := sends(t, url+"/readyz", "")
		return err == nil && status == http.StatusServiceUnavailable && strings.Contains(answer, "pglimit migrate up")
	})
	if status, answer, err := sends(t, url+"/healthz", ""); err != nil || status != http.StatusOK {
		t.Errorf("%d %s %v", status, answer, err)
	}
	c.run(t, "migrate", "up").exits(t, 0)
	until(t, "it is ready", func() bool { // it remembers its last check for a moment
		status, _, err := sends(t, url+"/readyz", "")
		return err == nil && status == http.StatusOK
	})
	for _, test := range []struct {
		body   string
		status int
		part   string
	}{
		{`{"limiter":"api","key":"ann"}`, http.StatusOK, `"allowed":true`},
		{`{"limiter":"api","key":"ann","limit":"1/month Europe/Nowhere"}`, http.StatusBadRequest, `"field":"limit"`}, // only Postgres knows
	} {
		if status, answer, err := sends(t, url+"/v1/allow", test.body); err != nil || status != test.status || !strings.Contains(answer, test.part) {
			t.Errorf("%s: %d %s %v", test.body, status, answer, err)
		}
	}
	must(t, process.Signal(os.Interrupt))
	if code, stderr := wait(); code != 0 || !strings.Contains(stderr, "not ready yet") {
		t.Errorf("exit code %d\n%s", code, stderr)
	}

	// A server that cannot write is not ready, and says why to clients; to the operator also which server it is.
	process, url, wait = c.serves(t, "--config", config, "--no-cleanup", "--drain", "0", "--database-url", with(databaseURL(pool), "default_transaction_read_only", "on"))
	for path, body := range map[string]string{"/readyz": "", "/v1/allow": `{"limiter":"api","key":"bob"}`} {
		until(t, path+" says that it is read-only", func() bool { // on a busy machine the first connection may take too long
			status, answer, err := sends(t, url+path, body)
			return err == nil && status == http.StatusServiceUnavailable && strings.Contains(answer, "this Postgres is read-only")
		})
	}
	must(t, process.Signal(os.Interrupt))
	if code, stderr := wait(); code != 0 || !strings.Contains(stderr, "server "+address(pool)+": ERROR") {
		t.Errorf("exit code %d\n%s", code, stderr)
	}
}

// address of the pool's server.
func address(pool *pgxpool.Pool) string {
	config := pool.Config().ConnConfig
	return net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port)))
}

// Without a file, the limits are those of the table, also of limiters that it did not have at the start.
func cliServesTheTable(t *testing.T, c cli) {
	c, _ = c.onMigrated(t)
	c.run(t, "limits", "set", "login", "--limit", "5/1m", "--note", "default").exits(t, 0)
	process, url, wait := c.serves(t, "--no-cleanup", "--drain", "0")
	answers := func(limiter string, status int, part string) {
		t.Helper()
		until(t, limiter+" is answered with "+part, func() bool {
			got, answer, err := sends(t, url+"/v1/allow", `{"limiter":"`+limiter+`","key":"ann"}`)
			return err == nil && got == status && strings.Contains(answer, part)
		})
	}
	answers("login", http.StatusOK, `"limit":"5/1m"`)
	answers("api", http.StatusNotFound, "one of login")
	c.run(t, "limits", "set", "api", "--limit", "10/1h", "--note", "default").exits(t, 0)
	answers("api", http.StatusOK, `"limit":"10/1h"`)
	c.run(t, "limits", "set", "api", "ann", "--action", "deny", "--note", "ticket 7").exits(t, 0)
	answers("api", http.StatusOK, `"allowed":false`)
	c.run(t, "limits", "delete", "login", "--note", "gone").exits(t, 0)
	answers("login", http.StatusNotFound, "one of api")
	must(t, process.Signal(os.Interrupt))
	if code, stderr := wait(); code != 0 {
		t.Errorf("exit code %d\n%s", code, stderr)
	}
}

func cliServeRefuses(t *testing.T, c cli) {
	c.env = []string{"DATABASE_URL=postgres://127.0.0.1:1/x"}
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, []byte("\nshort\n"), 0o600))
	for _, test := range []struct {
		args  []string
		words string
	}{
		{[]string{"--config", "nosuch.yaml"}, "nosuch.yaml"},
		{[]string{"--config", file}, "line 2"},
		{[]string{"--conns", "1"}, "--conns is 1"},
		{[]string{"--conns", "many"}, `--conns is "many": it must be a whole number`},
		{[]string{"--drain", "-1s"}, "--drain is -1s"},
		{[]string{"--grace", "-1s"}, "--grace is -1s"},
		{[]string{"--listen", "8080"}, `--listen: address 8080: missing port in address (write it like 127.0.0.1:8080`},
		{[]string{"--listen", "127.0.0.1:99999"}, "invalid port (write it like"},
		{[]string{"--token-file", file}, "file, line 2: a token must have at least 16 characters"},
		{[]string{"--token-file", os.DevNull}, "has no token"},
		{[]string{"--admin", "--listen", ":0"}, "needs --token-file: who reaches the page may change every limit"},
		{[]string{"--database-url", "postgres://h:x/y"}, "--database-url"},
	} {
		c.run(t, append([]string{"serve"}, test.args...)...).fails(t, test.words)
	}
}

// A browser gets the page with a token as its password, and the name is that of who changed a rule. Limiters of the table
// are counted each by its own name.
func cliServesThePage(t *testing.T, c cli) {
	c, pool := c.onMigrated(t)
	for _, limiter := range []string{"api", "login"} {
		c.run(t, "limits", "set", limiter, "--limit", "1/1h", "--note", "default").exits(t, 0)
	}
	tokens := filepath.Join(t.TempDir(), "tokens")
	const token = "0123456789abcdef"
	must(t, os.WriteFile(tokens, []byte(token+"\n"), 0o600))
	process, url, wait := c.serves(t, "--admin", "--token-file", tokens, "--drain", "0s")
	ask := func(method, path, password, form string) (status int, text string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, url+path, strings.NewReader(form))
		must(t, err)
		r.SetBasicAuth("eve", password)
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		if path == "/v1/allow" {
			r.Header.Set("Content-Type", "application/json")
		}
		client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
		answer, err := client.Do(r)
		must(t, err)
		defer func() { _ = answer.Body.Close() }()
		content, err := io.ReadAll(answer.Body)
		must(t, err)
		return answer.StatusCode, string(content) + strings.Join(answer.Header["Www-Authenticate"], " ")
	}
	if status, text := ask(http.MethodGet, "/admin/", "wrong", ""); status != http.StatusUnauthorized || !strings.Contains(text, `Basic realm="pglimit"`) {
		t.Error(status, text)
	}
	for limiter, times := range map[string]int{"api": 3, "login": 2} {
		for range times {
			until(t, "the limiter answers", func() bool {
				status, _ := ask(http.MethodPost, "/v1/allow", token, `{"limiter":"`+limiter+`","key":"ann"}`)
				return status == http.StatusOK
			})
		}
	}
	form := "do=set&limiter=api&limit=9/s&expires=24h&note=ticket+7"
	if status, _ := ask(http.MethodPost, "/admin/change", "wrong", form); status != http.StatusUnauthorized {
		t.Error(status)
	}
	if status, text := ask(http.MethodPost, "/admin/change", token, form); status != http.StatusSeeOther {
		t.Error(status, text)
	}
	if status, text := ask(http.MethodGet, "/admin/rules?limiter=api", token, ""); status != http.StatusOK || !strings.Contains(text, "by eve") {
		t.Error(status, text)
	}
	must(t, process.Signal(syscall.SIGTERM))
	if code, stderr := wait(); code != 0 || !strings.Contains(stderr, "/admin/") {
		t.Error(code, stderr)
	}
	const totals = "select string_agg(limiter || ' ' || n, ', ' order by limiter) from (select limiter, sum(granted_total + denied_total + failed_total) n from pglimit.top_keys group by limiter) t"
	if got := query[string](t, pool, totals); got != "api 3, login 2" {
		t.Error(got)
	}
}

// What any instance of the server has denied is listed by the command and by all instances, hashed; who has the key and
// the secret finds its line.
func cliTop(t *testing.T, c cli) {
	c, pool := c.onMigrated(t)
	c.run(t, "top").exits(t, 0).prints(t, "nothing was denied")
	dir := t.TempDir()
	config, secret := filepath.Join(dir, "limits.yaml"), filepath.Join(dir, "secret")
	must(t, os.WriteFile(config, []byte("limiters:\n  api: {limit: 1/1h, memory_ttl: 1ns}\n  login: {limit: 1/1h, memory_ttl: 1ns}\n"), 0o600))
	must(t, os.WriteFile(secret, []byte("a secret that nobody knows\n"), 0o600))
	process, url, wait := c.serves(t, "--config", config, "--hash-key-file", secret, "--drain", "0s")
	for _, asked := range []struct {
		limiter, key string
		times        int
	}{{"api", "ann", 4}, {"api", "bob", 3}, {"login", "ann", 2}} {
		for range asked.times {
			body, err := json.Marshal(map[string]string{"limiter": asked.limiter, "key": asked.key})
			must(t, err)
			status, answer, err := sends(t, url+"/v1/allow", string(body))
			must(t, err)
			if status != http.StatusOK {
				t.Fatal(answer)
			}
		}
	}
	must(t, process.Signal(syscall.SIGTERM))
	if code, stderr := wait(); code != 0 {
		t.Fatal(stderr)
	}
	stored := query[string](t, pool, "select json_agg(k)::text from pglimit.top_keys k")
	if strings.Contains(stored, "ann") || strings.Contains(stored, "bob") {
		t.Error(stored)
	}

	var listed struct {
		Keys  []pglimit.TopKey
		Found []struct {
			Line      int
			Limiter   string
			Denied60m int64 `json:"denied_60m"`
		}
	}
	read := func(text string) {
		t.Helper()
		listed.Keys, listed.Found = nil, nil
		must(t, json.Unmarshal([]byte(text), &listed))
	}
	find := []string{"top", "--minutes", "60", "--key", "ann", "--hash-key-file", secret, "--limit", "1"}
	read(c.run(t, append(find, "--output", "json")...).exits(t, 0).stdout)
	if len(listed.Keys) != 1 || len(listed.Found) != 2 || listed.Found[0].Limiter != "api" || listed.Found[0].Denied60m != 3 || listed.Found[1].Line != 3 {
		t.Errorf("%+v", listed)
	}
	c.run(t, find...).exits(t, 0).prints(t, "1     api      hmac:", "3     login    hmac:", "ann is line 1\nann is line 3\n")
	c.run(t, "top", "api", "--key", "ann").exits(t, 0).prints(t, "ann is none of them")
	c.run(t, "top", "other").exits(t, 0).prints(t, "nothing was denied")
	c.run(t, "top", "a", "b").fails(t, "takes [LIMITER]")
	c.run(t, "top", "--minutes", "5").fails(t, "--minutes", "1, 10, 60")
	c.run(t, "top", "--limit", "0").fails(t, "--limit")
	c.run(t, "top", "--hash-key-file", secret).fails(t, "--key")
	must(t, os.WriteFile(config, []byte("short"), 0o600))
	c.run(t, "top", "--key", "ann", "--hash-key-file", config).fails(t, "5 bytes", "openssl rand")

	_, url, _ = c.serves(t)
	get := func(query string) string {
		t.Helper()
		_, answer, err := sends(t, url+"/v1/top"+query, "")
		must(t, err)
		return answer
	}
	read(get("?limiter=api&by=granted&minutes=1&limit=5"))
	if len(listed.Keys) != 2 || listed.Keys[0].Granted1m != 1 {
		t.Errorf("%+v", listed)
	}
	for query, want := range map[string]string{
		"?minutes=5": "must be 1, 10 or 60", "?limit=0": "limit must be", "?by=name": "denied or granted",
		"?keys=1": "takes limiter, by, minutes and limit", "?limit=1&limit=2": "twice", "?limiter=nobody": `{"keys":[]}`,
	} {
		if answer := get(query); !strings.Contains(answer, want) {
			t.Errorf("%s: %s", query, answer)
		}
	}
	if status, answer, err := sends(t, url+"/v1/top", "{}"); status != http.StatusMethodNotAllowed {
		t.Error(status, answer, err)
	}
}
