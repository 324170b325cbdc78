package integration

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/pglimit/ratelimit/adapters/httplimit"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/semaphore"
	"github.com/pglimit/ratelimit/strategies"
)

// handbook are the pages whose every block is tested here, by its language: sh and sql run, go is
// compiled, yaml is parsed.
var handbook = []string{
	"admin.md", "alerts.md", "cli.md", "clients.md", "development.md", "exactness.md", "guide.md", "limits.md", "memory.md", "migrations.md", "moving.md", "operations.md", "outages.md", "README.md",
	"security.md", "semaphore.md", "stages.md", "strategies.md", "top.md", "windows.md", "../README.md",
}

// elsewhere are the other pages, and who tests their blocks.
var elsewhere = map[string]string{
	"bench.md":    "cliKnowsTheCommandsOfBench",
	"citus.md":    "TestCitusOfTheDocs",
	"gateways.md": "cmd/pglimit/internal/serve: TestGatewaysOfTheDocs",
	"grpc.md":     "adapters/grpclimit: TestDocs",
	"http.md":     "adapters/httplimit: TestTheAnswersInTheDocs, TestTheSnippetsInTheDocs",
	"proof.md":    "cmd/pglimit/internal/prove: TestTheProofHolds",
	"recipes.md":  "pglimit: TestRecipesOfTheDocs",
	"routers.md":  "adapters/httplimit: TestTheSnippetsOfOtherRouters",
	"serve.md":    "cliRunsServeDocs",
	"sql.md":      "TestSQLOfTheDocsRuns",
}

// pages are all of them, by their paths from docs.
func pages() []string { return append(slices.Sorted(maps.Keys(elsewhere)), handbook...) }

// block of code, of a page.
type block struct{ language, code string }

func readPage(t *testing.T, name string) (text string, blocks []block) {
	t.Helper()
	page, err := os.ReadFile("../docs/" + name)
	must(t, err)
	for _, found := range fence.FindAllStringSubmatch(string(page), -1) {
		blocks = append(blocks, block{found[1], found[2]})
	}
	if fences := strings.Count(string(page), "```"); fences != 2*len(blocks) {
		t.Fatalf("%s has %d fences, and %d blocks with a language were found", name, fences, len(blocks))
	}
	return string(page), blocks
}

var (
	roleOfTheDocs = regexp.MustCompile(`\bapp\b`)
	inlineCommand = regexp.MustCompile("`(pglimit [^`]*)`")
)

// cliRunsTheHandbook runs its commands and statements in order, each page on a database of its own.
func cliRunsTheHandbook(t *testing.T, c cli) {
	ran := map[string]int{}
	for _, name := range handbook {
		text, blocks := readPage(t, name)
		c, pool := c.onMigrated(t)
		role := newRole(t, databaseURL(pool))
		for _, b := range blocks {
			code := roleOfTheDocs.ReplaceAllString(b.code, role)
			ran[b.language]++
			switch b.language {
			case "sh":
				if onlyGoCommands(code) { // TestGoCommandsOfTheDocs
					continue
				}
				c.runShell(t, query[int](t, pool, "select current_setting('server_version_num')::int / 10000"), code)
			case "sql":
				execute(t, pool, code)
			case "yaml":
				var manifest any
				must(t, yaml.Unmarshal([]byte(b.code), &manifest))
				for _, command := range commandsIn(manifest) {
					c.run(t, command[1:]...).exits(t, 0)
					ran["command in yaml"]++
				}
			case "go": // TestGoOfTheDocs
			case "text": // what bench prints: a screen
				for i, line := range strings.Split(strings.TrimSpace(b.code), "\n") {
					if i >= 24 || utf8.RuneCountInString(line) > 80 {
						t.Errorf("%s: line %d of what is printed is too much for a screen: %q", name, i+1, line)
					}
				}
			default:
				t.Errorf("%s has a block of %q, which nobody tests", name, b.language)
			}
		}
		ran["inline"] += c.knowsInlineCommands(t, text)
	}
	for language, least := range map[string]int{"sh": 14, "sql": 5, "yaml": 2, "go": 8, "command in yaml": 1, "inline": 40} {
		if ran[language] < least {
			t.Errorf("%d of %s, want at least %d", ran[language], language, least)
		}
	}
}

// knowsInlineCommands checks the commands in the text of a page and their flags, by --help, which does nothing.
func (c cli) knowsInlineCommands(t *testing.T, text string) (found int) {
	t.Helper()
	for _, command := range inlineCommand.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		c.runShell(t, 0, command[1]+" --help")
		found++
	}
	return found
}

// runShell runs lines of shell, which must succeed. Lines that need a program of Postgres's that is not
// here, or is older than the server, are left out; but not in CI, where all are.
func (c cli) runShell(t *testing.T, server int, lines string) {
	t.Helper()
	for _, program := range []string{"psql", "pg_dump"} {
		if !strings.Contains(lines, program+" ") {
			continue
		}
		says, err := exec.CommandContext(t.Context(), program, "--version").Output()
		if err != nil && os.Getenv("CI") == "" {
			t.Logf("not run, there is no %s:\n%s", program, lines)
			return
		}
		must(t, err)
		major, err := strconv.Atoi(regexp.MustCompile(`\d+`).FindString(string(says)))
		must(t, err)
		if program == "pg_dump" && major < server { // it refuses
			t.Logf("not run, pg_dump %d cannot dump a server %d:\n%s", major, server, lines)
			return
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	command := c.command(ctx, t, "bash", "-euo", "pipefail", "-c", lines)
	command.Dir = t.TempDir()
	resultOf(t, command).exits(t, 0)
}

// commandsIn finds the commands of containers that are pglimit.
func commandsIn(node any) (commands [][]string) {
	switch node := node.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(node)) {
			if list, is := node[key].([]any); is && key == "command" && list[0] == "pglimit" {
				var command []string
				for _, word := range list {
					command = append(command, word.(string))
				}
				commands = append(commands, command)
				continue
			}
			commands = append(commands, commandsIn(node[key])...)
		}
	case []any:
		for _, child := range node {
			commands = append(commands, commandsIn(child)...)
		}
	}
	return commands
}

// Every block of Go stands in docs_examples_test.go, which is compiled, and is called; or in
// examples/hello, which compiles.
func TestGoOfTheDocs(t *testing.T) {
	examples, err := os.ReadFile("docs_examples_test.go")
	must(t, err)
	hello, err := os.ReadFile("../examples/hello/main.go")
	must(t, err)
	examples = append(examples, hello...)
	for _, name := range handbook {
		_, blocks := readPage(t, name)
		for _, b := range blocks {
			if b.language == "go" && !strings.Contains(unindented(string(examples)), unindented(b.code)) {
				t.Errorf("%s: neither in docs_examples_test.go nor in examples/hello:\n%s", name, b.code)
			}
		}
	}
	unhurried(t, func() error { return docsCalendarWindow(t.Context(), newMigrated(t)) })
	docsMigrateInTheBackground(t.Context(), newMigrated(t))
	t.Setenv("DATABASE_URL", databaseURL(newMigrated(t)))
	unhurried(t, func() error { return docsOwnPool(t.Context(), docsStop) })
	unhurried(t, func() error {
		return docsSemaphore(t.Context(), newMigrated(t), func(ctx context.Context, token int64) error {
			if token <= 0 {
				t.Errorf("token %d", token)
			}
			return ctx.Err()
		})
	})
	pool := newMigrated(t)
	_, err = docsSemaphoreTable(pool)
	must(t, err)
	must(t, docsSemaphoreIf(t.Context(), newSemaphore(t, pool, semaphore.Config{Places: 5}), newLimiter(t, pool, strategies.TokenBucket{}, pglimit.Config{Name: "api", Limit: hours})))
	unhurried(t, func() error { return docsBehindPgBouncer(t.Context(), docsStop) })
	docsAdmin(pool, nil, http.NewServeMux(), nil, nil)
	limiter, err := docsReadLimits(newMigrated(t))
	must(t, err)
	must(t, limiter.Close(t.Context()))
	_, err = docsClient(newMigrated(t))
	must(t, err)
	docsClientByToken(docsClientOfTwoRates(nil, nil).Transport.(*httplimit.Transport))
	paused := newLimiter(t, newMigrated(t), strategies.TokenBucket{}, pglimit.Config{Name: "outbound", Limit: pglimit.PerSecond(10), MaxWait: time.Minute})
	must(t, docsPause(t.Context(), paused, func(context.Context) (time.Duration, error) { return time.Hour, nil }))
	if err := docsPause(t.Context(), paused, nil); !errors.Is(err, pglimit.ErrWaitTooLong) {
		t.Error(err)
	}
	_, err = docsTop(t.Context(), newMigrated(t))
	must(t, err)
	_, err = docsSetLimit(t.Context(), newMigrated(t))
	must(t, err)
	routes := new(chain)
	_, err = docsHTTPRate(newMigrated(t), routes)
	must(t, err)
	if len(*routes) != 1 {
		t.Errorf("%d middlewares", len(*routes))
	}
	if keys := docsKeys("Ren\u00e9@example.com", " rene\u0301@Example.com", "rene@example.com"); len(keys[0]) != 43 || keys[0] != keys[1] || keys[0] == keys[2] {
		t.Error(keys)
	}
}

// unhurried calls again while all that fails is the default timeout of a second, which a busy machine may take.
func unhurried(t *testing.T, call func() error) {
	t.Helper()
	until(t, "it ends without a timeout", func() bool {
		err := call()
		if pglimit.CauseOf(err) == pglimit.CauseTimeout {
			return false
		}
		must(t, err)
		return true
	})
}

// The Go on the first screen of the README stands in examples/hello, a package of this module, and has ten lines.
func TestFirstScreenOfTheREADME(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../README.md")
	must(t, err)
	example, err := os.ReadFile("../examples/hello/main.go")
	must(t, err)
	first := fence.FindStringSubmatch(string(readme))
	if lines := strings.Count(first[2], "\n"); lines > 10 {
		t.Errorf("%d lines of Go", lines)
	}
	if first[1] != "go" || !strings.Contains(unindented(string(example)), unindented(first[2])) {
		t.Errorf("not in examples/hello/main.go:\n%s", first[2])
	}
}

// chain is a router that has middlewares and nothing else.
type chain []func(http.Handler) http.Handler

func (c *chain) Use(middlewares ...func(http.Handler) http.Handler) { *c = append(*c, middlewares...) }

func unindented(code string) string {
	lines := strings.Split(code, "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return strings.Join(lines, "\n")
}

var (
	heading  = regexp.MustCompile(`(?m)^#+ (.*)$`)
	link     = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	noAnchor = regexp.MustCompile("[^a-z0-9 _-]")
)

// Links between the pages lead somewhere.
func TestLinksOfTheDocs(t *testing.T) {
	t.Parallel()
	anchors := map[string][]string{}
	for _, name := range pages() {
		page := filepath.Clean("../docs/" + name)
		text, err := os.ReadFile(page)
		must(t, err)
		anchors[page] = []string{}
		for _, h := range heading.FindAllStringSubmatch(fence.ReplaceAllString(string(text), ""), -1) {
			anchors[page] = append(anchors[page], strings.ReplaceAll(noAnchor.ReplaceAllString(strings.ToLower(h[1]), ""), " ", "-"))
		}
	}
	followed := 0
	for page := range anchors {
		text, err := os.ReadFile(page)
		must(t, err)
		for _, to := range link.FindAllStringSubmatch(fence.ReplaceAllString(string(text), ""), -1) {
			path, anchor, _ := strings.Cut(to[1], "#")
			if strings.Contains(path, "://") {
				continue
			}
			target := page
			if path != "" {
				target = filepath.Join(filepath.Dir(page), path)
			}
			followed++
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: %s: %v", page, to[1], err)
			} else if known, is := anchors[target]; anchor != "" && is && !slices.Contains(known, anchor) {
				t.Errorf("%s: %s: there is no such heading", page, to[1])
			}
		}
	}
	if followed < 100 {
		t.Errorf("%d links were found", followed)
	}
}

// Each alert has a runbook, and each runbook an alert.
func TestAlertsOfTheHandbook(t *testing.T) {
	t.Parallel()
	text, _ := readPage(t, "alerts.md")
	var runbooks []string
	for _, found := range regexp.MustCompile(`(?m)^#### (\w+)\n\n\S`).FindAllStringSubmatch(text, -1) {
		runbooks = append(runbooks, found[1])
	}
	rules, err := os.ReadFile("../deploy/prometheus/alerts.yaml")
	if os.IsNotExist(err) {
		t.Skip("there are no rules yet")
	}
	must(t, err)
	var alerts []string
	for _, found := range regexp.MustCompile(`(?m)^\s*- alert: (\w+)$`).FindAllStringSubmatch(string(rules), -1) {
		alerts = append(alerts, found[1])
	}
	for _, alert := range alerts {
		if to := "docs/alerts.md#" + strings.ToLower(alert) + "\n"; !strings.Contains(string(rules), to) {
			t.Errorf("%s: no runbook_url leads to %s", alert, to)
		}
	}
	slices.Sort(alerts)
	slices.Sort(runbooks)
	if len(alerts) == 0 || !slices.Equal(alerts, runbooks) {
		t.Errorf("alerts %q\nrunbooks %q", alerts, runbooks)
	}
}
