package otellimit

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/pglimit/ratelimit/pglimit"
)

// RoundTrips is a histogram of the calls of Postgres: see [NewRoundTrips]. It is safe for
// concurrent use.
type RoundTrips struct {
	seconds metric.Float64Histogram
}

// NewRoundTrips makes the histogram pglimit.round_trip.duration, in seconds, with the attributes
// pglimit.limiter, pglimit.strategy, pglimit.operation and, of a call that failed, error.type: the
// Outcome, as in [pglimit.RoundTrip]. One serves any number of Limiters: put its Record
// into the Config of each.
//
// It advises buckets from 0.5 ms to 10 s. For an exponential histogram, give your SDK a View of
// pglimit.round_trip.duration.
func NewRoundTrips(meter metric.Meter) (*RoundTrips, error) {
	seconds, err := meter.Float64Histogram("pglimit.round_trip.duration", metric.WithUnit("s"),
		metric.WithDescription("Calls of the strategy, from the call to the answer, with the wait for a connection."),
		metric.WithExplicitBucketBoundaries(.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10))
	if err != nil {
		return nil, fmt.Errorf("otellimit: %w", err)
	}
	return &RoundTrips{seconds}, nil
}

// Record is a Config.OnRoundTrip.
func (r *RoundTrips) Record(ctx context.Context, trip pglimit.RoundTrip) {
	attributes := []attribute.KeyValue{
		attribute.String("pglimit.limiter", trip.Limiter), attribute.String("pglimit.strategy", trip.Strategy),
		attribute.String("pglimit.operation", trip.Operation),
	}
	if trip.Err != nil {
		attributes = append(attributes, attribute.String("error.type", trip.Outcome))
	}
	r.seconds.Record(ctx, trip.Duration.Seconds(), metric.WithAttributes(attributes...))
}
