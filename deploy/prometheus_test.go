package deploy_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// program of Debian's package prometheus, or the test is skipped.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("there is no %s: apt-get install prometheus", name)
	}
	return path
}

func promtool(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), program(t, "promtool"), args...).CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func TestPromtoolChecksTheAlerts(t *testing.T) {
	t.Parallel()
	promtool(t, "check", "rules", "--lint=all", "--lint-fatal", "prometheus/alerts.yaml")
}

func TestTheAlertsFireWhenTheyShould(t *testing.T) {
	t.Parallel()
	promtool(t, "test", "rules", "prometheus/alerts_test.yaml")
}

// promtool checks rules only, so each expression of the dashboard is made one.
func TestPromtoolChecksTheDashboard(t *testing.T) {
	t.Parallel()
	type recording struct {
		Record string `yaml:"record"`
		Expr   string `yaml:"expr"`
	}
	var rules []recording
	for where, expr := range expressions(t, readDashboard(t)) {
		rules = append(rules, recording{fmt.Sprintf("panel:%x", where), expr})
	}
	file, err := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "dashboard", "rules": rules}}})
	must(t, err)
	path := filepath.Join(t.TempDir(), "dashboard.yaml")
	must(t, os.WriteFile(path, file, 0o600))
	promtool(t, "check", "rules", path)
}

// A Prometheus scrapes two instances under load. Every panel shows something then, no alert fails, and
// none fires.
func TestPrometheusAnswersEveryExpression(t *testing.T) {
	t.Parallel()
	p := startPrometheus(t)
	silent := expressions(t, readDashboard(t))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	for len(silent) > 0 && ctx.Err() == nil {
		for where, expr := range silent {
			if p.answers(ctx, t, where, expr) {
				delete(silent, where)
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
	for _, where := range slices.Sorted(maps.Keys(silent)) {
		t.Errorf("%s: nothing to see of %s", where, silent[where])
	}
	var rules struct {
		Groups []struct {
			Rules []struct{ Name, State, Health, LastError string }
		}
	}
	must(t, p.get(t.Context(), "rules", nil, &rules))
	for _, group := range rules.Groups {
		for _, r := range group.Rules {
			if r.Health != "ok" || r.State != "inactive" {
				t.Errorf("%s is %s, %s: %s", r.Name, r.Health, r.State, r.LastError)
			}
		}
	}
	if len(rules.Groups) != 2 {
		t.Errorf("%d groups of rules", len(rules.Groups))
	}
}

// server is a Prometheus on loopback.
type server struct{ address string }

func startPrometheus(t *testing.T) server {
	t.Helper()
	binary := program(t, "prometheus")
	metrics := httptest.NewServer(shop)
	t.Cleanup(metrics.Close)
	_, port, _ := net.SplitHostPort(metrics.Listener.Addr().String())
	alerts, err := filepath.Abs("prometheus/alerts.yaml")
	must(t, err)
	folder := t.TempDir()
	config := fmt.Sprintf(`
global: {scrape_interval: 250ms, scrape_timeout: 250ms, evaluation_interval: 500ms}
rule_files: [%q]
scrape_configs:
  - {job_name: shop, static_configs: [{targets: ["127.0.0.1:%s", "localhost:%[2]s"]}]}
`, alerts, port)
	must(t, os.WriteFile(filepath.Join(folder, "prometheus.yml"), []byte(config), 0o600))
	p := server{freeAddress(t)}
	cmd := exec.CommandContext(t.Context(), binary, "--config.file="+filepath.Join(folder, "prometheus.yml"),
		"--storage.tsdb.path="+filepath.Join(folder, "data"), "--web.listen-address="+p.address)
	var log strings.Builder
	cmd.Stderr = &log
	must(t, cmd.Start())
	t.Cleanup(func() { // t.Context has ended, and with it the process
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	return p
}

func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}

// answers says whether the expression has a number now. An expression that is wrong fails the test.
func (p server) answers(ctx context.Context, t *testing.T, where, expr string) bool {
	t.Helper()
	var data struct {
		Result []struct {
			Value [2]any
		}
	}
	err := p.get(ctx, "query", url.Values{"query": {expr}}, &data)
	if errors.Is(err, errRefused) {
		t.Errorf("%s: %v: %s", where, err, expr)
		return true
	}
	for _, series := range data.Result {
		if value := series.Value[1]; value != "NaN" {
			return true
		}
	}
	return false
}

// errRefused says that Prometheus is up and does not like the question.
var errRefused = errors.New("refused by Prometheus")

func (p server) get(ctx context.Context, what string, form url.Values, data any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.address+"/api/v1/"+what+"?"+form.Encode(), nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode == http.StatusServiceUnavailable { // it is starting
		return errors.New(response.Status)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%w: %s", errRefused, body)
	}
	return json.Unmarshal(body, &struct{ Data any }{data})
}
