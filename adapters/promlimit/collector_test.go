package promlimit_test

import (
	"context"
	"errors"
	"maps"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"

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

// series as a scrape has them: name{label="value",…}, help and type of each with its value.
type series map[string]float64

func gather(t testing.TB, registry prometheus.Gatherer) series {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	s := series{}
	for _, family := range families {
		if family.GetType() == dto.MetricType_HISTOGRAM {
			continue
		}
		for _, metric := range family.GetMetric() {
			labels := map[string]string{}
			for _, label := range metric.GetLabel() {
				labels[label.GetName()] = label.GetValue()
			}
			value := metric.GetCounter().GetValue()
			if family.GetType() == dto.MetricType_GAUGE {
				value = metric.GetGauge().GetValue()
			}
			s[line(family.GetName(), family.GetHelp(), family.GetType(), labels)] = value
		}
	}
	return s
}

func line(name, help string, kind dto.MetricType, labels map[string]string) string {
	var b strings.Builder
	for _, label := range slices.Sorted(maps.Keys(labels)) {
		b.WriteString(label + "=" + strconv.Quote(labels[label]) + ",")
	}
	return name + "{" + b.String() + "} " + kind.String() + " " + help
}

// want is what a scrape of these limiters must have.
func want(limiters ...*pglimit.Limiter) series {
	s := series{}
	for _, l := range limiters {
		of := map[string]string{"limiter": l.Config().Name, "strategy": l.Strategy().Name()}
		s[line("pglimit_limit_tokens_per_second", "The limit of each key: tokens that come back in a second.", dto.MetricType_GAUGE, of)] = 10
		s[line("pglimit_limit_burst_tokens", "The limit of each key: tokens that can be taken at once.", dto.MetricType_GAUGE, of)] = 20
		s[line("pglimit_timeout_seconds", "The time limit of a decision.", dto.MetricType_GAUGE, of)] = 60
		s[line("pglimit_max_waiting", "How many requests may wait for an answer at once.", dto.MetricType_GAUGE, of)] = 1 << 16
		for stat := range l.Stats().All() {
			labels, name, kind := maps.Clone(of), "pglimit_"+stat.Name+"_total", dto.MetricType_COUNTER
			if stat.Label != "" {
				labels[stat.Label] = stat.LabelValue
			}
			if stat.Gauge {
				name, kind = "pglimit_"+stat.Name, dto.MetricType_GAUGE
			}
			s[line(name, stat.Help, kind, labels)] = float64(stat.Value)
		}
	}
	return s
}

func compare(t *testing.T, got, want series) {
	t.Helper()
	for name, value := range want {
		if has, there := got[name]; !there || has != value {
			t.Errorf("%s is %v (there: %t), want %v", name, has, there, value)
		}
	}
	for name := range got {
		if _, known := want[name]; !known {
			t.Errorf("%s is too many", name)
		}
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
		for range 2 {
			metertest.Use(t, one, 1)
			metertest.Use(t, two, 2)
			metertest.Use(t, three.On(pglimit.InTx(noTx{})), 3)
			got := gather(t, registry)
			compare(t, got, want(one, two, three))
			for _, literally := range []string{
				`pglimit_allowed_total{limiter="api",source="database",strategy="token_bucket",} COUNTER Requests granted`,
				`pglimit_failed_total{cause="refused",limiter="login",strategy="token_bucket",} COUNTER Requests of which`,
				`pglimit_contended_total{limiter="api",strategy="upsert",} COUNTER Requests denied because`,
				`pglimit_denied_total{limiter="login",source="memory",strategy="token_bucket",} COUNTER Requests denied`,
			} {
				found := false
				for name, value := range got {
					found = found || strings.HasPrefix(name, literally) && value > 0
				}
				if !found {
					t.Errorf("%s: there is no %s…", name, literally)
				}
			}
		}
	}
}

// noTx stands in for a transaction.
type noTx struct{ pglimit.Tx }

func TestPromlintFindsNothing(t *testing.T) {
	t.Parallel()
	limiter := metertest.NewLimiter(t, "api", "token_bucket", nil)
	metertest.Use(t, limiter, 2)
	problems, err := testutil.GatherAndLint(registered(t, promlimit.New(limiter)))
	if err != nil || len(problems) > 0 {
		t.Error(problems, err)
	}
}

// The queries of the documentation are about metrics that there are.
func TestTheQueriesInTheDoc(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	limiter := metertest.NewLimiter(t, "api", "token_bucket", nil)
	registry := registered(t, promlimit.New(limiter))
	metertest.Use(t, limiter, 1)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, family := range families {
		names = append(names, family.GetName())
	}
	named := regexp.MustCompile(`pglimit_[a-z_]+`).FindAllString(string(doc), -1)
	for _, name := range named {
		if !slices.Contains(names, strings.TrimSuffix(name, "_bucket")) {
			t.Errorf("there is no %s", name)
		}
	}
	if len(named) < 5 {
		t.Errorf("only %q", named)
	}
}

func TestALimiterWithoutATimeLimit(t *testing.T) {
	t.Parallel()
	limiter := metertest.NewLimiter(t, "api", "upsert", func(c *pglimit.Config) { c.Timeout, c.MaxWaiting = pglimit.NoTimeout, 7 })
	got, of := gather(t, registered(t, promlimit.New(limiter))), map[string]string{"limiter": "api", "strategy": "upsert"}
	timeout, waiting := got[line("pglimit_timeout_seconds", "The time limit of a decision.", dto.MetricType_GAUGE, of)],
		got[line("pglimit_max_waiting", "How many requests may wait for an answer at once.", dto.MetricType_GAUGE, of)]
	if !math.IsInf(timeout, 1) || waiting != 7 {
		t.Errorf("%v, %v", timeout, waiting)
	}
}

func TestALimiterThatIsClosedKeepsItsNumbers(t *testing.T) {
	t.Parallel()
	limiter := metertest.NewLimiter(t, "api", "token_bucket", nil)
	registry := registered(t, promlimit.New(limiter))
	metertest.Use(t, limiter, 3)
	before := gather(t, registry)
	if err := limiter.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	compare(t, gather(t, registry), before)
	if _, err := limiter.Allow(t.Context(), "granted"); !errors.Is(err, pglimit.ErrClosed) {
		t.Error(err)
	}
	compare(t, gather(t, registry), want(limiter))
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
		if families, err := registry.Gather(); err != nil || len(families) > 0 {
			t.Errorf("%v, %v", families, err)
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

// Scrapes while requests are under way: no counter falls, and in the end nothing is missing.
func TestScrapesWhileRequestsAreUnderWay(t *testing.T) {
	t.Parallel()
	limiter := metertest.NewLimiter(t, "api", "token_bucket", nil)
	registry := registered(t, promlimit.New(limiter))
	var users, scrapers sync.WaitGroup
	done, stop := context.WithCancel(t.Context())
	for range 4 {
		users.Go(func() { metertest.Use(t, limiter, 50) })
	}
	for range 2 {
		scrapers.Go(func() {
			before := gather(t, registry)
			for done.Err() == nil {
				now := gather(t, registry)
				for name, value := range before {
					if now[name] < value && strings.Contains(name, "} COUNTER ") {
						t.Errorf("%s fell from %v to %v", name, value, now[name])
					}
				}
				before = now
			}
		})
	}
	users.Wait()
	stop()
	scrapers.Wait()
	compare(t, gather(t, registry), want(limiter))
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

// A denial from memory, with and without the collector and the histogram.
func BenchmarkDenial(b *testing.B) {
	for _, with := range []bool{false, true} {
		b.Run("exported="+strconv.FormatBool(with), func(b *testing.B) {
			limiter := metertest.NewLimiter(b, "api", "token_bucket", nil)
			if with {
				registered(b, promlimit.New(limiter))
			}
			_, _ = limiter.Allow(b.Context(), "denied")
			b.ReportAllocs()
			for b.Loop() {
				_, _ = limiter.Allow(b.Context(), "denied")
			}
		})
	}
}

// BenchmarkScrape of ten limiters.
func BenchmarkScrape(b *testing.B) {
	var limiters []*pglimit.Limiter
	for i := range 10 {
		limiters = append(limiters, metertest.NewLimiter(b, "api-"+strconv.Itoa(i), "token_bucket", nil))
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(promlimit.New(limiters...))
	for b.Loop() {
		_, _ = registry.Gather()
	}
}
