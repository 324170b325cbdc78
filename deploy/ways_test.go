package deploy_test

import (
	"bufio"
	"context"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/pglimit/ratelimit/adapters/promlimit"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// start a program on the database, and return the URL that it says it listens on.
func start(t *testing.T, database, binary string, listens *regexp.Regexp, args ...string) (url string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary, args...)
	cmd.Env = append(os.Environ(), "DATABASE_URL="+database)
	stderr, err := cmd.StderrPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Wait() }) // t.Context has ended, and with it the process
	var said strings.Builder
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		said.WriteString(lines.Text() + "\n")
		if found := listens.FindStringSubmatch(lines.Text()); found != nil {
			go func() {
				for lines.Scan() { // a full pipe would stop it
				}
			}()
			return "http://" + found[1]
		}
	}
	t.Fatalf("%s %v ended:\n%s", binary, args, said.String())
	return ""
}

// look at what the programs are made of. "go test" repeats a result that it has kept only if the files
// that the test has looked at are the same, and does not see those that a test compiles.
func look(t *testing.T) {
	t.Helper()
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && entry.Name() == ".git" {
			return fs.SkipDir
		}
		if err == nil && !entry.IsDir() {
			_, err = os.Stat(path)
		}
		return err
	})
	must(t, err)
}

// ask and return what is answered.
func ask(t *testing.T, method, url, body string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	must(t, err)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-User", "ann")
	answer, err := http.DefaultClient.Do(r)
	must(t, err)
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	must(t, err)
	return string(text)
}

// scrapeOf a program.
func scrapeOf(t *testing.T, url string) scraped {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(ask(t, http.MethodGet, url+"/metrics", "")))
	must(t, err)
	return newScraped(maps.Values(families))
}

// One scrape of whatever runs pglimit feeds every alert and every panel that it can. The cleanup has no limiter: it
// feeds those about the database. What the guide has a program register knows nothing of the program's own requests.
func TestEveryWayToRunFeedsAlertsAndDashboard(t *testing.T) {
	t.Parallel()
	look(t)
	folder := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-o", folder, "../cmd/pglimit", "../examples/service").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	pool, urlFor := newDatabase(t, "migrated")
	command, service := filepath.Join(folder, "pglimit"), filepath.Join(folder, "service")
	database, listens := urlFor(pool.Config().ConnConfig.User), regexp.MustCompile(`listen=(\S+)`)
	limiter, err := pglimit.New(pool, strategies.TokenBucket{}, pglimit.Config{Name: "guide", Limit: pglimit.Every(time.Hour), Timeout: time.Minute})
	must(t, err)
	registry := prometheus.NewRegistry()
	registry.MustRegister(promlimit.New(limiter), promlimit.NewDatabase(pool, nil)) // as docs/guide.md has it
	guide := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	t.Cleanup(guide.Close)
	run(t, pool, "select pglimit.acquire('imports', 'imports', 9, 5, '1 hour')")
	config := filepath.Join(t.TempDir(), "limits.yaml")
	must(t, os.WriteFile(config, []byte("limiters: {api: {limit: 1/1h}}"), 0o600))
	ways := map[string]string{
		"cleanup": start(t, database, command, listens, "cleanup", "--metrics", "127.0.0.1:0"),
		"serve":   start(t, database, command, listens, "serve", "--listen", "127.0.0.1:0", "--config", config),
		"guide":   guide.URL,
		"service": start(t, database, service, regexp.MustCompile(`metrics http://(\S+)/metrics`), "--listen", "127.0.0.1:0"),
	}
	use := map[string]func(){
		"cleanup": func() {},
		"serve": func() {
			ask(t, http.MethodPost, ways["serve"]+"/v1/allow?denied=429", `{"limiter":"api","key":"ann"}`)
		},
		"guide": func() {
			for range 2 {
				if _, err := limiter.Allow(t.Context(), "ann"); err != nil {
					t.Error(err)
				}
			}
		},
		"service": func() { ask(t, http.MethodGet, ways["service"]+"/search", "") },
	}
	everything, ofDatabase := expressions(t, readDashboard(t)), map[string]string{}
	for where, expr := range everything {
		if strings.Contains(expr, "pglimit_permits_") { // none of the ways has a semaphore: TestPrometheusAnswersEveryExpression
			delete(everything, where)
		}
		if strings.HasPrefix(where, "The tables: ") || strings.Contains(expr, "pglimit_database_permits") {
			ofDatabase[where] = expr
		}
	}
	for _, r := range readRules(t) {
		if everything[r.Alert] = r.Expr; r.Group == "pglimit-database" {
			ofDatabase[r.Alert] = r.Expr
		}
	}
	if len(ofDatabase) < 20 {
		t.Errorf("of the database there are %d expressions", len(ofDatabase))
	}
	for way, url := range ways {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			wanted := maps.Clone(everything)
			switch way {
			case "cleanup":
				wanted = ofDatabase
			case "guide":
				maps.DeleteFunc(wanted, func(_, expr string) bool { return strings.Contains(expr, "http_request_duration_seconds") })
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			for { // until something was granted, something was denied, and the cleanup has run
				use[way]()
				s, faults := scrapeOf(t, url), []string(nil)
				for where, expr := range wanted {
					for _, fault := range s.faults(expr) {
						faults = append(faults, where+": "+fault)
					}
				}
				if len(faults) == 0 {
					return
				}
				select {
				case <-time.After(50 * time.Millisecond):
				case <-ctx.Done():
					slices.Sort(faults)
					t.Fatal(strings.Join(faults, "\n"))
				}
			}
		})
	}
}
