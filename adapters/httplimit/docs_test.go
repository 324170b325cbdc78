package httplimit_test

import (
	"go/format"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/adapters/httplimit"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
)

const doc = "../../docs/http.md"

// documented is the server whose answers docs/http.md shows. A path is a section of it.
func documented(t *testing.T, memory *pglimittest.Strategy) http.Handler {
	limiter := newLimiter(t, memory, pglimit.Config{Limit: pglimit.PerMinute(1)})
	down := pglimittest.Memory()
	down.Fail(pglimit.ErrUnavailable)
	mux := http.NewServeMux()
	handle := func(path string, limiter *pglimit.Limiter, config httplimit.Config) {
		if config.Key == nil {
			config.Key = httplimit.Join(httplimit.Constant(path), httplimit.ClientIP(httplimit.Proxies{}))
		}
		config.Logger = new(logged).logger()
		mux.Handle(path, httplimit.New(limiter, config)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "hello\n")
		})))
	}
	handle("/hello", limiter, httplimit.Config{})
	handle("/several", limiter, httplimit.Config{Requests: severalLimits})
	handle("/keyed", limiter, httplimit.Config{Key: httplimit.Header("X-Api-Key")})
	handle("/down", newLimiter(t, down, pglimit.Config{Limit: pglimit.PerMinute(2)}), httplimit.Config{})
	return mux
}

// exchange sends a request as curl does, and returns the answer as it came.
func exchange(t *testing.T, address, path string, header []string) string {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	must(t, err)
	defer func() { _ = conn.Close() }()
	lines := append([]string{"GET " + path + " HTTP/1.1", "Host: localhost:8080", "Connection: close"}, header...)
	_, err = io.WriteString(conn, strings.Join(lines, "\r\n")+"\r\n\r\n")
	must(t, err)
	answer, err := io.ReadAll(conn)
	must(t, err)
	return strings.NewReplacer("Connection: close\r\n", "", "\r\n", "\n").Replace(string(answer)) // which curl does not ask for
}

var (
	consoles = regexp.MustCompile("(?s)```console\n(.*?)```")
	commands = regexp.MustCompile(`(?m)^\$ curl -i( -H '([^']*)')? localhost:8080(/[a-z]*)\n`)
	dates    = regexp.MustCompile(`(?m)^Date: .*$`)
	snippets = regexp.MustCompile("(?s)```go\n(.*?)```")
)

// Every answer that docs/http.md shows is what a server sends. With PGLIMIT_UPDATE_DOCS=1 they are
// written anew.
func TestTheAnswersInTheDocs(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(doc)
	must(t, err)
	address := strings.TrimPrefix(served(t, documented(t, pglimittest.Memory())), "http://")
	shown := 0
	fresh := consoles.ReplaceAllStringFunc(string(text), func(block string) string {
		var b strings.Builder
		for _, command := range commands.FindAllStringSubmatch(block, -1) {
			var header []string
			if command[2] != "" {
				header = append(header, command[2])
			}
			answer := dates.ReplaceAllString(exchange(t, address, command[3], header), "Date: Sun, 22 Nov 2026 10:00:00 GMT")
			b.WriteString(command[0] + answer)
			shown++
		}
		return "```console\n" + b.String() + "```"
	})
	if shown < 5 {
		t.Errorf("only %d answers", shown)
	}
	if os.Getenv("PGLIMIT_UPDATE_DOCS") != "" {
		must(t, os.WriteFile(doc, []byte(fresh), 0o600))
	} else if fresh != string(text) {
		t.Errorf("docs/http.md shows other answers than a server sends, which are:\n%s", strings.Join(consoles.FindAllString(fresh, -1), "\n"))
	}
}

// Every snippet of docs/http.md stands in a file of this package, and so compiles.
func TestTheSnippetsInTheDocs(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(doc)
	must(t, err)
	var code strings.Builder
	for _, name := range []string{"docs_test.go", "docs_example_test.go"} {
		file, err := os.ReadFile(name)
		must(t, err)
		code.WriteString(unindented(string(file)))
	}
	blocks := snippets.FindAllStringSubmatch(string(text), -1)
	for _, block := range blocks {
		if !strings.Contains(code.String(), unindented(block[1])) {
			t.Errorf("this stands nowhere here:\n%s", block[1])
		}
	}
	if len(blocks) < 8 {
		t.Errorf("only %d snippets", len(blocks))
	}
}

// The snippets of docs/routers.md are Go. They are not compiled, because this module imports no router.
func TestTheSnippetsOfOtherRouters(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/routers.md")
	must(t, err)
	blocks := snippets.FindAllStringSubmatch(string(text), -1)
	for _, block := range blocks {
		formatted, err := format.Source([]byte(block[1]))
		if err != nil {
			t.Errorf("%v:\n%s", err, block[1])
		} else if string(formatted) != block[1] {
			t.Errorf("gofmt writes\n%s\ninstead of\n%s", formatted, block[1])
		}
	}
	if len(blocks) < 3 {
		t.Errorf("only %d snippets", len(blocks))
	}
}

func unindented(code string) string {
	return regexp.MustCompile(`(?m)^[ \t]+`).ReplaceAllString(code, "")
}

// severalLimits are those of the snippet.
func severalLimits(_ *http.Request, key string) []pglimit.Request {
	return []pglimit.Request{
		{Key: key},
		{Limiter: "api/day", Key: key, Limit: pglimit.Per(1000, 24*time.Hour)},
		{Limiter: "api/org", Key: "org:7", Limit: pglimit.PerSecond(100)},
	}
}
