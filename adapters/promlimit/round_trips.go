package promlimit

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pglimit/ratelimit/pglimit"
)

// RoundTrips is a histogram of the calls of Postgres: see [NewRoundTrips]. It is safe for
// concurrent use.
type RoundTrips struct {
	seconds *prometheus.HistogramVec
}

var _ prometheus.Collector = (*RoundTrips)(nil)

// NewRoundTrips makes the histogram pglimit_round_trip_duration_seconds, with the labels limiter,
// strategy, operation and outcome, as in [pglimit.RoundTrip]. One serves any number of Limiters:
// register it, and put its Observe into the Config of each.
//
// It has buckets from 0.5 ms to 10 s, and is a native histogram too, whose buckets grow by a tenth,
// where Prometheus scrapes these.
func NewRoundTrips() *RoundTrips {
	return &RoundTrips{prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "pglimit_round_trip_duration_seconds",
		Help:    "Calls of the strategy, from the call to the answer, with the wait for a connection.",
		Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},

		// The bounds keep a wide spread of durations from growing the histogram without end.
		NativeHistogramBucketFactor:     1.1,
		NativeHistogramMaxBucketNumber:  160,
		NativeHistogramMinResetDuration: time.Hour,
	}, []string{"limiter", "strategy", "operation", "outcome"})}
}

// Observe is a Config.OnRoundTrip.
func (r *RoundTrips) Observe(_ context.Context, trip pglimit.RoundTrip) {
	r.seconds.WithLabelValues(trip.Limiter, trip.Strategy, trip.Operation, trip.Outcome).Observe(trip.Duration.Seconds())
}

// Describe implements [prometheus.Collector].
func (r *RoundTrips) Describe(descs chan<- *prometheus.Desc) { r.seconds.Describe(descs) }

// Collect implements [prometheus.Collector].
func (r *RoundTrips) Collect(metrics chan<- prometheus.Metric) { r.seconds.Collect(metrics) }
