package promlimit_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/pglimit/ratelimit/adapters/internal/metertest"
	"github.com/pglimit/ratelimit/adapters/promlimit"
	"github.com/pglimit/ratelimit/pglimit"
)

// registered is a registry with the collectors. It checks what they describe against what they
// collect.
func registered(t testing.TB, collectors ...prometheus.Collector) *prometheus.Registry {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	for _, c := range collectors {
		if err := registry.Register(c); err != nil {
			t.Fatal(err)
		}
	}
	return registry
}

// scrape returns the lines of the page, # HELP and # TYPE too, without the histogram.
func scrape(registry *prometheus.Registry) []string {
	page := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/", http.NoBody))
	lines := strings.Split(strings.TrimSpace(page.Body.String()), "\n")
	return slices.DeleteFunc(lines, func(line string) bool { return strings.Contains(line, "pglimit_round_trip_duration_seconds") })
}

// want is what a scrape of these limiters must have.
func want(limiters ...*pglimit.Limiter) []string {
	lines := map[string]bool{}
	add := func(name, help, labels, kind string, value int64) {
		lines["# HELP "+name+" "+help] = true
		lines["# TYPE "+name+" "+kind] = true
		lines[name+"{"+labels+"} "+strconv.FormatInt(value, 10)] = true
	}
	for _, l := range limiters {
		name, strategy := fmt.Sprintf("limiter=%q", l.Config().Name), fmt.Sprintf("strategy=%q", l.Strategy().Name())
		of := name + "," + strategy
		add("pglimit_limit_tokens_per_second", "The limit of each key: tokens that come back in a second.", of, "gauge", 10)
		add("pglimit_limit_burst_tokens", "The limit of each key: tokens that can be taken at once.", of, "gauge", 20)
		add("pglimit_timeout_seconds", "The time limit of a decision.", of, "gauge", 60)
		add("pglimit_max_waiting", "How many requests may wait for an answer at once.", of, "gauge", 1<<16)
		for stat := range l.Stats().All() {
			labels := []string{name, strategy}
			if stat.Label != "" {
				labels = append(labels, fmt.Sprintf("%s=%q", stat.Label, stat.LabelValue))
			}
			slices.Sort(labels)
			of := strings.Join(labels, ",")
			if stat.Gauge {
				add("pglimit_"+stat.Name, stat.Help, of, "gauge", stat.Value)
			} else {
				add("pglimit_"+stat.Name+"_total", stat.Help, of, "counter", stat.Value)
			}
		}
	}
	return slices.Sorted(maps.Keys(lines))
}

func compare(t *testing.T, got, want []string) {
	t.Helper()
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("a scrape has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// Limiters of one process: by name, by strategy, in one collector or in several.
func TestEveryNumberIsExported(t *testing.T) {
	t.Parallel()
	one, two, three := metertest.NewLimiter(t, "api", "token_bucket", nil), metertest.NewLimiter(t, "login", "token_bucket", nil), metertest.NewLimiter(t, "api", "upsert", nil)
	for name, collectors := range map[string][]prometheus.Collector{
		"one collector": {promlimit.New(one, two, three)},
		"each its own":  {promlimit.New(one), promlimit.New(two), promlimit.New(three)},
	} {
		registry := registered(t, collectors...)
		metertest.Use(t, one, 1)
		metertest.Use(t, two, 2)
		metertest.Use(t, three.On(pglimit.InTx(noTx{})), 3)
		got := scrape(registry)
		compare(t, got, want(one, two, three))
		for _, literally := range []string{
			`pglimit_allowed_total{limiter="api",source="database",strategy="token_bucket"} [1-9]`,
			`pglimit_failed_total{cause="refused",limiter="login",strategy="token_bucket"} [1-9]`,
			`pglimit_contended_total{limiter="api",strategy="upsert"} [1-9]`,
			`pglimit_denied_total{limiter="login",source="memory",strategy="token_bucket"} [1-9]`,
		} {
			if !regexp.MustCompile(`(?m)^` + literally).MatchString(strings.Join(got, "\n")) {
				t.Errorf("%s: there is no %s", name, literally)
			}
		}
	}
}

// noTx stands in for a transaction.
type noTx struct{ pglimit.Tx }

// Promlint finds nothing, and the queries of the documentation are about metrics that there are.
func TestNamesOfMetrics(t *testing.T) {
	t.Parallel()
	limiter := metertest.NewLimiter(t, "api", "token_bucket", nil)
	registry := registered(t, promlimit.New(limiter))
	metertest.Use(t, limiter, 2)
	problems, err := testutil.GatherAndLint(registry)
	if err != nil || len(problems) > 0 {
		t.Error(problems, err)
	}
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`pglimit_[a-z_]+`).FindAllString(string(doc), -1)
	for _, name := range named {
		if n, err := testutil.GatherAndCount(registry, strings.TrimSuffix(name, "_bucket")); n == 0 || err != nil {
			t.Errorf("there is no %s: %v", name, err)
		}
	}
	if len(named) < 5 {
		t.Errorf("only %q", named)
	}
}

func TestALimiterWithoutATimeLimit(t *testing.T) {
	t.Parallel()
	limiter := metertest.NewLimiter(t, "api", "upsert", func(c *pglimit.Config) { c.Timeout, c.MaxWaiting = pglimit.NoTimeout, 7 })
	got := scrape(registered(t, promlimit.New(limiter)))
	for _, line := range []string{"pglimit_timeout_seconds{%s} +Inf", "pglimit_max_waiting{%s} 7"} {
		if line = fmt.Sprintf(line, `limiter="api",strategy="upsert"`); !slices.Contains(got, line) {
			t.Errorf("there is no %s", line)
		}
	}
}

func TestRegisterRefuses(t *testing.T) {
	t.Parallel()
	one, same, other := metertest.NewLimiter(t, "api", "token_bucket", nil), metertest.NewLimiter(t, "api", "token_bucket", nil), metertest.NewLimiter(t, "api", "upsert", nil)
	for _, test := range []struct {
		collector prometheus.Collector
		want      string
	}{
		{promlimit.New(one, nil), "promlimit: limiter 1 of New is nil"},
		{promlimit.New(one, other, same), `promlimit: limiter 2 of New is the second with the name "api" and the strategy token_bucket: name each once`},
		{promlimit.New(nil, one, one), "promlimit: limiter 0 of New is nil\npromlimit: limiter 2 of New is the second with"},
	} {
		registry := prometheus.NewRegistry()
		if err := registry.Register(test.collector); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v, want %s", err, test.want)
		}
	}
	registry := prometheus.NewRegistry()
	first, second := promlimit.New(one), promlimit.New(same)
	if err := registry.Register(first); err != nil {
		t.Error(err)
	}
	if err := registry.Register(second); !errors.As(err, new(prometheus.AlreadyRegisteredError)) {
		t.Error(err)
	}
	if !registry.Unregister(first) || registry.Register(second) != nil {
		t.Error("it cannot be replaced")
	}
}

// Scrapes while requests are under way: in the end nothing is missing.
func TestScrapesWhileRequestsAreUnderWay(t *testing.T) {
	t.Parallel()
	limiter := metertest.NewLimiter(t, "api", "token_bucket", nil)
	registry := registered(t, promlimit.New(limiter))
	var users, scraper sync.WaitGroup
	done, stop := context.WithCancel(t.Context())
	for range 4 {
		users.Go(func() { metertest.Use(t, limiter, 50) })
	}
	scraper.Go(func() {
		for done.Err() == nil {
			scrape(registry)
		}
	})
	users.Wait()
	stop()
	scraper.Wait()
	compare(t, scrape(registry), want(limiter))
	if s := limiter.Stats(); s.Allowed.Total() != 400 || s.Denied.Total() != 400 || s.Failed.Total() != 200 {
		t.Errorf("%+v", s)
	}
}

func TestARegisteredLimiterAllocatesNothing(t *testing.T) {
	limiter := metertest.NewLimiter(t, "api", "token_bucket", nil)
	registered(t, promlimit.New(limiter))
	ctx := t.Context()
	_, _ = limiter.Allow(ctx, "denied")
	if n := testing.AllocsPerRun(1000, func() { _, _ = limiter.Allow(ctx, "denied") }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
