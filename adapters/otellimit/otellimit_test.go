package otellimit_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/pglimit/ratelimit/adapters/internal/metertest"
	"github.com/pglimit/ratelimit/adapters/otellimit"
	"github.com/pglimit/ratelimit/pglimit"
)

// newMeter makes a meter, and the reader of what it measures.
func newMeter(views ...sdk.View) (metric.Meter, *sdk.ManualReader) {
	reader := sdk.NewManualReader()
	return sdk.NewMeterProvider(sdk.WithReader(reader), sdk.WithView(views...)).Meter("test"), reader
}

// point is one number as it is exported.
type point struct {
	name, help, unit, attributes string
	counter                      bool
}

func collect(t testing.TB, reader *sdk.ManualReader) (map[point]float64, map[string]metricdata.HistogramDataPoint[float64]) {
	t.Helper()
	var collected metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &collected); err != nil {
		t.Fatal(err)
	}
	points, histograms := map[point]float64{}, map[string]metricdata.HistogramDataPoint[float64]{}
	for _, scope := range collected.ScopeMetrics {
		for _, m := range scope.Metrics {
			p := point{name: m.Name, help: m.Description, unit: m.Unit}
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				p.counter = data.IsMonotonic
				for _, number := range data.DataPoints {
					p.attributes = text(number.Attributes)
					points[p] = float64(number.Value)
				}
			case metricdata.Gauge[int64]:
				for _, number := range data.DataPoints {
					p.attributes = text(number.Attributes)
					points[p] = float64(number.Value)
				}
			case metricdata.Gauge[float64]:
				for _, number := range data.DataPoints {
					p.attributes = text(number.Attributes)
					points[p] = number.Value
				}
			case metricdata.Histogram[float64]:
				for _, h := range data.DataPoints {
					histograms[m.Name+" "+m.Unit+" "+text(h.Attributes)] = h
				}
			default:
				t.Errorf("%s is a %T", m.Name, data)
			}
		}
	}
	return points, histograms
}

func text(set attribute.Set) string {
	all := map[string]string{}
	for _, kv := range set.ToSlice() {
		all[string(kv.Key)] = kv.Value.String()
	}
	return join(all)
}

func join(attributes map[string]string) string {
	var all []string
	for key, value := range attributes {
		all = append(all, key+"="+value)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// want is what a collection of these limiters must have.
func want(limiters ...*pglimit.Limiter) map[point]float64 {
	points := map[point]float64{}
	for _, l := range limiters {
		of := map[string]string{"limiter": l.Config().Name, "strategy": l.Strategy().Name()}
		points[point{name: "pglimit.limit.tokens_per_second", help: "The limit of each key: tokens that come back in a second.", attributes: join(of)}] = 10
		points[point{name: "pglimit.limit.burst_tokens", help: "The limit of each key: tokens that can be taken at once.", attributes: join(of)}] = 20
		points[point{name: "pglimit.timeout", help: "The time limit of a decision.", unit: "s", attributes: join(of)}] = 60
		points[point{name: "pglimit.max_waiting", help: "How many requests may wait for an answer at once.", attributes: join(of)}] = 1 << 16
		for stat := range l.Stats().All() {
			attributes := maps.Clone(of)
			if stat.Label != "" {
				attributes[stat.Label] = stat.LabelValue
			}
			points[point{name: "pglimit." + stat.Name, help: stat.Help, attributes: join(attributes), counter: !stat.Gauge}] = float64(stat.Value)
		}
	}
	return points
}

func compare(t *testing.T, got, want map[point]float64) {
	t.Helper()
	for p, value := range want {
		if has, there := got[p]; !there || has != value {
			t.Errorf("%+v is %v (there: %t), want %v", p, has, there, value)
		}
	}
	for p := range got {
		if _, known := want[p]; !known {
			t.Errorf("%+v is too much", p)
		}
	}
}

func register(t testing.TB, meter metric.Meter, limiters ...*pglimit.Limiter) metric.Registration {
	t.Helper()
	registration, err := otellimit.Register(meter, limiters...)
	if err != nil {
		t.Fatal(err)
	}
	return registration
}

// Limiters of one process: by name, by strategy, registered at once or one after another.
func TestEveryNumberIsExported(t *testing.T) {
	t.Parallel()
	one, two, three := metertest.NewLimiter(t, "api", "token_bucket", nil), metertest.NewLimiter(t, "login", "token_bucket", nil), metertest.NewLimiter(t, "api", "upsert", nil)
	for _, together := range []bool{true, false} {
		meter, reader := newMeter()
		if together {
			register(t, meter, one, two, three)
		} else {
			register(t, meter, one)
			register(t, meter, two, three)
		}
		metertest.Use(t, one, 1)
		metertest.Use(t, two, 2)
		metertest.Use(t, three.On(pglimit.InTx(noTx{})), 3)
		got, _ := collect(t, reader)
		compare(t, got, want(one, two, three))
		for _, literally := range []string{"pglimit.allowed limiter=api source=database strategy=token_bucket", "pglimit.failed cause=refused limiter=login strategy=token_bucket"} {
			found := false
			for p, value := range got {
				found = found || p.name+" "+p.attributes == literally && p.counter && value > 0
			}
			if !found {
				t.Errorf("together=%t: there is no %s", together, literally)
			}
		}
	}
}

// OpenTelemetry's exporter for Prometheus makes names and labels of which the dashboard and the alerts know all.
func TestTheDashboardAndTheAlertsShowIt(t *testing.T) {
	t.Parallel()
	meter, reader := newMeter()
	limiter := metertest.NewLimiter(t, "api", "upsert", nil)
	register(t, meter, limiter)
	metertest.Use(t, limiter, 1)
	points, histograms := collect(t, reader)
	labels := map[string]string{}
	for p := range points {
		name := strings.ReplaceAll(p.name, ".", "_") + map[bool]string{true: "_total"}[p.counter] + map[string]string{"s": "_seconds"}[p.unit]
		labels[name] = p.attributes
	}
	for h := range histograms {
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			labels["pglimit_round_trip_duration_seconds"+suffix] = h
		}
	}
	read := 0
	for _, file := range []string{"grafana/pglimit.json", "prometheus/alerts.yaml"} {
		text, err := os.ReadFile("../../deploy/" + file)
		if err != nil {
			t.Fatal(err)
		}
		for _, selector := range regexp.MustCompile(`(pglimit_\w+)(?:\{|\[|\))([^}\]]*)`).FindAllStringSubmatch(string(text), -1) {
			name := selector[1]
			if strings.HasPrefix(name, "pglimit_database_") || strings.HasPrefix(name, "pglimit_permits_") {
				continue
			}
			read++
			has, there := labels[name]
			if !there {
				t.Errorf("%s: there is no %s", file, name)
			}
			for _, label := range []string{"limiter", "strategy", "operation", "outcome", "source", "cause", "action"} {
				if regexp.MustCompile(`\b`+label+`!?[=~]`).MatchString(selector[2]) && !strings.Contains(" "+has, " "+label+"=") {
					t.Errorf("%s: %s has no label %s: %s", file, name, label, has)
				}
			}
		}
	}
	if read < 80 {
		t.Errorf("only %d selectors", read)
	}
}

// noTx stands in for a transaction.
type noTx struct{ pglimit.Tx }

func TestARegisteredLimiterAllocatesNothing(t *testing.T) {
	limiter := metertest.NewLimiter(t, "api", "token_bucket", nil)
	meter, _ := newMeter()
	register(t, meter, limiter)
	ctx := t.Context()
	_, _ = limiter.Allow(ctx, "denied")
	if n := testing.AllocsPerRun(1000, func() { _, _ = limiter.Allow(ctx, "denied") }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// refusing is a meter that makes no gauges of floats.
type refusing struct{ noop.Meter }

var errRefused = errors.New("the meter refuses")

func (refusing) Float64ObservableGauge(string, ...metric.Float64ObservableGaugeOption) (metric.Float64ObservableGauge, error) {
	return noop.Float64ObservableGauge{}, errRefused
}

func TestRegisterRefuses(t *testing.T) {
	t.Parallel()
	one, same, other := metertest.NewLimiter(t, "api", "token_bucket", nil), metertest.NewLimiter(t, "api", "token_bucket", nil), metertest.NewLimiter(t, "api", "upsert", nil)
	for _, test := range []struct {
		limiters []*pglimit.Limiter
		want     string
	}{
		{[]*pglimit.Limiter{one, nil}, "otellimit: limiter 1 of Register is nil"},
		{[]*pglimit.Limiter{one, other, same}, `otellimit: limiter 2 of Register is the second with the name "api" and the strategy token_bucket: name each once`},
		{[]*pglimit.Limiter{nil, one, one}, "otellimit: limiter 0 of Register is nil\notellimit: limiter 2 of Register is the second with"},
	} {
		meter, reader := newMeter()
		if _, err := otellimit.Register(meter, test.limiters...); err == nil || !strings.HasPrefix(err.Error(), test.want) {
			t.Errorf("%v, want %s", err, test.want)
		}
		if got, _ := collect(t, reader); len(got) > 0 {
			t.Errorf("%v", got)
		}
	}
	for range 2 { // the first attempt leaves nothing registered
		if _, err := otellimit.Register(refusing{}, one); !errors.Is(err, errRefused) {
			t.Error(err)
		}
	}
}

// The SDK would add up what two registrations observe. The end of one ends nothing of another.
func TestALimiterIsRegisteredOnce(t *testing.T) {
	t.Parallel()
	limiter, same, login := metertest.NewLimiter(t, "api", "token_bucket", nil), metertest.NewLimiter(t, "api", "token_bucket", nil), metertest.NewLimiter(t, "login", "token_bucket", nil)
	metertest.Use(t, limiter, 3)
	meter, reader := newMeter()
	other, _ := newMeter()
	registration := register(t, meter, limiter)
	register(t, other, limiter)
	for _, again := range []*pglimit.Limiter{limiter, same, limiter.On(pglimit.InTx(noTx{}))} {
		_, err := otellimit.Register(meter, login, again)
		if err == nil || err.Error() != `otellimit: limiter 1 of Register, with the name "api" and the strategy token_bucket, is registered with this meter already: register it once, or Unregister it first` {
			t.Error(err)
		}
	}
	register(t, meter, login)
	got, _ := collect(t, reader)
	compare(t, got, want(limiter, login))
	for range 2 { // the second time it does nothing
		if err := registration.Unregister(); err != nil {
			t.Error(err)
		}
		got, _ = collect(t, reader)
		compare(t, got, want(login))
	}
	register(t, meter, limiter)
	_ = registration.Unregister()
	if _, err := otellimit.Register(meter, same); err == nil {
		t.Error("the end of an earlier registration was taken for that of a later one")
	}
	got, _ = collect(t, reader)
	compare(t, got, want(limiter, login))
}
