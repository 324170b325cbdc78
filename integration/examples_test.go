package integration

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// The small programs of examples/, as a newcomer runs them. (examples/nodatabase is a test itself, and
// examples/grpc a module with its own.)
func TestExamples(t *testing.T) {
	t.Parallel()
	programs := map[string]func(*testing.T, example){
		"plans":  examplePlans,
		"login":  exampleLogin,
		"worker": exampleWorker,
		"client": exampleClient,
		"llm":    exampleLLM,
	}
	folder := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", folder)
	for name := range programs {
		build.Args = append(build.Args, "./examples/"+name)
	}
	build.Dir = ".."
	if said, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	index, err := os.ReadFile("../examples/README.md")
	must(t, err)
	files, err := filepath.Glob("../examples/*/*.go")
	must(t, err)
	for _, file := range files {
		name := filepath.Base(filepath.Dir(file))
		if !bytes.Contains(index, []byte("]("+name+")")) {
			t.Errorf("examples/README.md has no link to %s", name)
		}
		text, err := os.ReadFile(file)
		must(t, err)
		if lines := bytes.Count(text, []byte("\n")); name != "service" && name != "databasesql" && !strings.HasSuffix(file, "_test.go") && lines > 60 {
			t.Errorf("%s has %d lines, more than 60", file, lines)
		}
	}
	for name, test := range programs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, example{binary: filepath.Join(folder, name), database: newDatabase(t)})
		})
	}
}

// example is a program, and its database.
type example struct{ binary, database string }

func (e example) command(t *testing.T, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), e.binary)
	cmd.Env = append(append(os.Environ(), "DATABASE_URL="+e.database), env...)
	cmd.Stderr = t.Output()
	return cmd
}

// answers is a client of the program, which is a server: its answer to a form that a user of an
// organisation posts.
func (e example) answers(t *testing.T) func(path, user, form string) (status int, body string, header http.Header) {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0") // a port that is free
	must(t, err)
	address := listener.Addr().String()
	must(t, listener.Close())
	server := e.command(t, "ADDR="+address)
	must(t, server.Start())
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	deadline := time.Now().Add(time.Minute)
	for {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", address)
		if err == nil {
			must(t, conn.Close())
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Millisecond) //nolint:forbidigo // between two looks: nobody tells when it listens
	}
	return func(path, user, form string) (int, string, http.Header) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address+path, strings.NewReader(form))
		must(t, err)
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("X-User", user)
		r.Header.Set("X-Org", "acme")
		answer, err := http.DefaultClient.Do(r)
		must(t, err)
		defer func() { _ = answer.Body.Close() }()
		body, err := io.ReadAll(answer.Body)
		must(t, err)
		return answer.StatusCode, string(body), answer.Header
	}
}

// A free user has five at once, and 100 a day; ann, who pays, has more.
func examplePlans(t *testing.T, e example) {
	ask := e.answers(t)
	for i, want := range []int{200, 200, 200, 200, 200, 429} {
		status, body, header := ask("/", "bob", "")
		if status != want || want == 200 && !strings.Contains(header.Get("Ratelimit"), fmt.Sprintf(`"day";r=%d`, 99-i)) {
			t.Errorf("request %d of bob: %d %s %v", i, status, body, header)
		}
		if status, body, _ := ask("/", "ann", ""); status != 200 || body != "hello ann\n" {
			t.Errorf("request %d of ann: %d %s", i, status, body)
		}
	}
}

// Five wrong passwords, then none is tried, and then the name is blocked for a quarter of an hour,
// however it is written. Right ones are not counted.
func exampleLogin(t *testing.T, e example) {
	ask := e.answers(t)
	try := func(name, password string, want int) (body string) {
		t.Helper()
		status, body, _ := ask("/login", "", url.Values{"name": {name}, "password": {password}}.Encode())
		if status != want {
			t.Errorf("%s, %s: %d %s, want %d", name, password, status, body, want)
		}
		return body
	}
	for range 7 {
		try("ann", "right", 200)
	}
	for range 5 {
		try("Ann", "wrong", 401)
	}
	for range 5 {
		try("ann ", "right", 429)
	}
	if body := try("ANN", "right", 429); !strings.Contains(body, "abnormal-usage-detected") {
		t.Errorf("not blocked: %s", body)
	}
	try("bob", "right", 200)
	try("bob", "wrong", 401)
}

// Two workers make their calls 50 ms apart, together.
func exampleWorker(t *testing.T, e example) {
	var both []*exec.Cmd
	var called [2]bytes.Buffer
	began := time.Now()
	for i := range called {
		worker := e.command(t)
		worker.Stdin, worker.Stdout = strings.NewReader("1\n2\n3\n4\n5\n6\n"), &called[i]
		must(t, worker.Start())
		both = append(both, worker)
	}
	for i, worker := range both {
		must(t, worker.Wait())
		if n := strings.Count(called[i].String(), "called "); n != 6 {
			t.Errorf("worker %d made %d calls: %s", i, n, called[i].String())
		}
	}
	if took := time.Since(began); took < 11*50*time.Millisecond {
		t.Errorf("12 calls within %v", took)
	}
}

// A client is told to wait for an hour, and ends with the response. Another one then sends nothing, until a reset.
func exampleClient(t *testing.T, e example) {
	var requests atomic.Int64
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if requests.Add(1) == 1 {
			w.Header().Set("Retry-After", "3600")
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	defer api.Close()
	get := func(want string, sent int64) {
		t.Helper()
		client := e.command(t)
		client.Args = append(client.Args, api.URL, api.URL)
		out, err := client.Output()
		if err != nil || string(out) != strings.ReplaceAll(want, "URL", api.URL) || requests.Load() != sent {
			t.Errorf("%v, %d requests: %s", err, requests.Load(), out)
		}
	}
	get("429 Too Many Requests URL\nnot sent URL\n", 1)
	get("not sent URL\nnot sent URL\n", 1)
	limiter := newLimiter(t, newPool(t, e.database, 1), strategies.TokenBucket{}, pglimit.Config{Name: "outbound", Limit: hours})
	must(t, limiter.Reset(t.Context(), "host:"+strings.TrimPrefix(api.URL, "http://")))
	get("200 OK URL\n200 OK URL\n", 3)
}

// What is estimated is taken of both and settled: a user has many short answers. The organisation
// pays for all of its users.
func exampleLLM(t *testing.T, e example) {
	ask := e.answers(t)
	chat := func(user string, words, want int) (body string) {
		t.Helper()
		status, body, _ := ask("/chat", user, "prompt="+strings.Repeat("a+", words))
		if status != want {
			t.Errorf("%s, %d words: %d %s, want %d", user, words, status, body, want)
		}
		return body
	}
	for range 5 {
		chat("ann", 10, 200) // costs 20, and 505 until it has answered
	}
	chat("ann", 400, 200)
	chat("bob", 200, 200)
	if body := chat("ann", 10, 429); !strings.Contains(body, `["user"]`) { // who has 100 left
		t.Errorf("ann: %s", body)
	}
	if body := chat("carl", 10, 429); !strings.Contains(body, `["org"]`) { // which has 200 left
		t.Errorf("carl: %s", body)
	}
	chat("dora", 1500, 400) // more than she could ever have
}
