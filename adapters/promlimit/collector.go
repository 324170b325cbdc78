package promlimit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pglimit/ratelimit/adapters/internal/meters"
	"github.com/pglimit/ratelimit/pglimit"
)

// Collector exports the Stats and the limits of some Limiters: see [New].
type Collector struct {
	limiters []exported
	err      error // what Register returns
}

var _ prometheus.Collector = (*Collector)(nil)

// exported is a Limiter with the descriptions of its metrics.
type exported struct {
	*pglimit.Limiter
	descs map[string]*prometheus.Desc // by the name of a Stat or Setting
	trips *prometheus.HistogramVec
}

// New makes a collector of the limiters' metrics:
//
//   - each number of [pglimit.Stats.All], as the counter pglimit_NAME_total or the gauge pglimit_NAME, with the labels
//     limiter, strategy and its own, if it has one: source, cause or action;
//   - the gauges pglimit_limit_tokens_per_second and pglimit_limit_burst_tokens: the limit of each key;
//   - the gauges pglimit_timeout_seconds (+Inf if there is none) and pglimit_max_waiting: Config.Timeout and
//     Config.MaxWaiting;
//   - the histogram pglimit_round_trip_duration_seconds of the calls of Postgres since New, with the labels limiter,
//     strategy, operation and outcome, as in [pglimit.RoundTrip]. It has buckets from 0.5 ms to 10 s. Where Prometheus
//     scrapes native histograms, it is one too, with buckets that grow by a tenth.
//
// To export a Limiter that is made later, register another collector. To stop exporting Limiters, unregister their
// collector. A closed Limiter keeps its numbers.
//
// Register returns an error if a limiter is nil, or if two have the same name and strategy.
func New(limiters ...*pglimit.Limiter) *Collector {
	c := &Collector{}
	seen := make(map[[2]string]bool)
	for i, limiter := range limiters {
		if limiter == nil {
			c.err = errors.Join(c.err, fmt.Errorf("promlimit: limiter %d of New is nil", i))
			continue
		}
		name, strategy := limiter.Config().Name, limiter.Strategy().Name()
		if seen[[2]string{name, strategy}] {
			c.err = errors.Join(c.err, fmt.Errorf(
				"promlimit: limiter %d of New is the second with the name %q and the strategy %s: name each once", i, name, strategy))
			continue
		}
		seen[[2]string{name, strategy}] = true
		c.limiters = append(c.limiters, describe(limiter, prometheus.Labels{"limiter": name, "strategy": strategy}))
	}
	return c
}

// describe returns the metrics of a Limiter. Its name and strategy are constant labels, so that another collector can
// have the same metrics of another Limiter.
func describe(limiter *pglimit.Limiter, labels prometheus.Labels) exported {
	e := exported{Limiter: limiter, descs: make(map[string]*prometheus.Desc), trips: newRoundTrips(labels)}
	limiter.ObserveRoundTrips(func(_ context.Context, trip pglimit.RoundTrip) {
		e.trips.WithLabelValues(trip.Operation, trip.Outcome).Observe(trip.Duration.Seconds())
	})
	for _, setting := range meters.Settings {
		name := "pglimit_" + strings.ReplaceAll(setting.Name, ".", "_")
		if setting.Unit == "s" {
			name += "_seconds"
		}
		e.descs[setting.Name] = prometheus.NewDesc(name, setting.Help, nil, labels)
	}
	for stat := range (pglimit.Stats{}).All() {
		name, own := "pglimit_"+stat.Name, []string(nil)
		if !stat.Gauge {
			name += "_total"
		}
		if stat.Label != "" {
			own = []string{stat.Label}
		}
		e.descs[stat.Name] = prometheus.NewDesc(name, stat.Help, own, labels)
	}
	return e
}

// Describe implements [prometheus.Collector].
func (c *Collector) Describe(descs chan<- *prometheus.Desc) {
	if c.err != nil {
		descs <- prometheus.NewInvalidDesc(c.err)
		return
	}
	for _, e := range c.limiters {
		e.trips.Describe(descs)
		for _, desc := range e.descs {
			descs <- desc
		}
	}
}

// Collect implements [prometheus.Collector].
func (c *Collector) Collect(metrics chan<- prometheus.Metric) {
	for _, e := range c.limiters {
		config := e.Config()
		for _, setting := range meters.Settings {
			metrics <- prometheus.MustNewConstMetric(e.descs[setting.Name], prometheus.GaugeValue, setting.Value(config))
		}
		e.trips.Collect(metrics)
		for stat := range e.Stats().All() {
			kind, own := prometheus.CounterValue, []string(nil)
			if stat.Gauge {
				kind = prometheus.GaugeValue
			}
			if stat.Label != "" {
				own = []string{stat.LabelValue}
			}
			metrics <- prometheus.MustNewConstMetric(e.descs[stat.Name], kind, float64(stat.Value), own...)
		}
	}
}

func newRoundTrips(labels prometheus.Labels) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:        "pglimit_round_trip_duration_seconds",
		Help:        meters.RoundTrips,
		ConstLabels: labels,
		Buckets:     meters.Buckets,

		// The bounds keep a wide spread of durations from growing the histogram without end.
		NativeHistogramBucketFactor:     1.1,
		NativeHistogramMaxBucketNumber:  160,
		NativeHistogramMinResetDuration: time.Hour,
	}, []string{"operation", "outcome"})
}
