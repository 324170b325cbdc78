package otellimit

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/pglimit/ratelimit/pglimit"
)

// Register exports the limiters' metrics through the meter, until you unregister the registration:
//
//   - each number of [pglimit.Stats.All], as the observable counter or gauge pglimit.NAME, with the attributes limiter,
//     strategy and its own, if it has one: source, cause or action;
//   - the observable gauges pglimit.limit.tokens_per_second and pglimit.limit.burst_tokens: the limit of each key;
//   - the observable gauges pglimit.timeout, in seconds (missing if there is none), and pglimit.max_waiting:
//     Config.Timeout and Config.MaxWaiting;
//   - the histogram pglimit.round_trip.duration of the calls of Postgres, in seconds, with the attributes limiter,
//     strategy, operation and outcome, as in [pglimit.RoundTrip]. It advises buckets from 0.5 ms to 10 s. For an
//     exponential histogram, give your SDK a View of it.
//
// Register can be called again, for a Limiter that is made later. A closed Limiter keeps its numbers.
//
// The error says that a limiter is nil, that two limiters of the meter have the same name and strategy (the SDK would
// add up their numbers), or what the meter refused.
func Register(meter metric.Meter, limiters ...*pglimit.Limiter) (metric.Registration, error) {
	r := &registration{}
	if err := r.claim(meter, limiters); err != nil {
		r.release()
		return nil, err
	}
	i := instruments{stats: make(map[string]metric.Int64Observable)}
	all, err := i.make(meter)
	if err == nil {
		r.Registration, err = meter.RegisterCallback(func(_ context.Context, observer metric.Observer) error {
			for _, limiter := range limiters {
				i.observe(observer, limiter)
			}
			return nil
		}, all...)
	}
	if err != nil {
		r.release()
		return nil, fmt.Errorf("otellimit: %w", err)
	}
	for _, limiter := range limiters {
		r.stops = append(r.stops, limiter.ObserveRoundTrips(i.record))
	}
	return r, nil
}

// series are the numbers of a limiter that a meter exports.
type series struct {
	meter          any
	name, strategy string
}

// exported has the registration of each series, because a meter does not say what is registered with it.
var exported sync.Map

// registration of some series, which no other registration has.
type registration struct {
	metric.Registration
	claimed []series
	stops   []func() // the histogram
}

// claim registers the series of the limiters. Even after an error, release those that were claimed.
func (r *registration) claim(meter metric.Meter, limiters []*pglimit.Limiter) (err error) {
	for i, limiter := range limiters {
		if limiter == nil {
			err = errors.Join(err, fmt.Errorf("otellimit: limiter %d of Register is nil", i))
			continue
		}
		s := series{meter, limiter.Config().Name, limiter.Strategy().Name()}
		if !reflect.ValueOf(meter).Comparable() { // it cannot be told from others
			s.meter = r
		}
		by, twice := exported.LoadOrStore(s, r)
		switch {
		case !twice:
			r.claimed = append(r.claimed, s)
		case by == r:
			err = errors.Join(err, fmt.Errorf("otellimit: limiter %d of Register is the second with the name %q and the strategy %s: name each once", i, s.name, s.strategy))
		default:
			err = errors.Join(err, fmt.Errorf("otellimit: limiter %d of Register, with the name %q and the strategy %s, is registered with this meter already: register it once, or Unregister it first", i, s.name, s.strategy))
		}
	}
	return err
}

func (r *registration) release() {
	for _, stop := range r.stops {
		stop()
	}
	for _, s := range r.claimed {
		exported.CompareAndDelete(s, r)
	}
}

// Unregister ends the export. Then the limiters can be registered again.
func (r *registration) Unregister() error {
	if err := r.Registration.Unregister(); err != nil {
		return err
	}
	r.release()
	return nil
}

type instruments struct {
	stats      map[string]metric.Int64Observable // by Stat.Name
	rate       metric.Float64ObservableGauge
	burst      metric.Int64ObservableGauge
	timeout    metric.Float64ObservableGauge
	maxWaiting metric.Int64ObservableGauge
	trips      metric.Float64Histogram
}

// make the instruments, and return all of them.
func (i *instruments) make(meter metric.Meter) ([]metric.Observable, error) {
	var errs [6]error
	i.rate, errs[0] = meter.Float64ObservableGauge("pglimit.limit.tokens_per_second",
		metric.WithDescription("The limit of each key: tokens that come back in a second."))
	i.burst, errs[1] = meter.Int64ObservableGauge("pglimit.limit.burst_tokens",
		metric.WithDescription("The limit of each key: tokens that can be taken at once."))
	i.timeout, errs[3] = meter.Float64ObservableGauge("pglimit.timeout", metric.WithUnit("s"), metric.WithDescription("The time limit of a decision."))
	i.maxWaiting, errs[4] = meter.Int64ObservableGauge("pglimit.max_waiting", metric.WithDescription("How many requests may wait for an answer at once."))
	i.trips, errs[5] = newRoundTrips(meter)
	all := []metric.Observable{i.rate, i.burst, i.timeout, i.maxWaiting}
	for stat := range (pglimit.Stats{}).All() {
		if i.stats[stat.Name] != nil {
			continue
		}
		var err error
		if name := "pglimit." + stat.Name; stat.Gauge {
			i.stats[stat.Name], err = meter.Int64ObservableGauge(name, metric.WithDescription(stat.Help))
		} else {
			i.stats[stat.Name], err = meter.Int64ObservableCounter(name, metric.WithDescription(stat.Help))
		}
		errs[2] = errors.Join(errs[2], err)
		all = append(all, i.stats[stat.Name])
	}
	return all, errors.Join(errs[:]...)
}

func (i *instruments) observe(observer metric.Observer, limiter *pglimit.Limiter) {
	config := limiter.Config()
	of := []attribute.KeyValue{attribute.String("limiter", config.Name), attribute.String("strategy", limiter.Strategy().Name())}
	whole := metric.WithAttributes(of...)
	limit := config.Limit
	observer.ObserveFloat64(i.rate, float64(limit.Tokens)/limit.Period.Seconds(), whole)
	observer.ObserveInt64(i.burst, limit.Burst, whole)
	if timeout := config.Timeout; timeout != pglimit.NoTimeout {
		observer.ObserveFloat64(i.timeout, timeout.Seconds(), whole)
	}
	observer.ObserveInt64(i.maxWaiting, int64(config.MaxWaiting), whole)
	for stat := range limiter.Stats().All() {
		with := whole
		if stat.Label != "" {
			with = metric.WithAttributes(append(of[:2:2], attribute.String(stat.Label, stat.LabelValue))...)
		}
		observer.ObserveInt64(i.stats[stat.Name], stat.Value, with)
	}
}

// newRoundTrips makes the histogram. Its advice is buckets from 0.5 ms to 10 s.
func newRoundTrips(meter metric.Meter) (metric.Float64Histogram, error) {
	return meter.Float64Histogram("pglimit.round_trip.duration", metric.WithUnit("s"),
		metric.WithDescription("Calls of the strategy, from the call to the answer, with the wait for a connection."),
		metric.WithExplicitBucketBoundaries(.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10))
}

// record is a Config.OnRoundTrip.
func (i *instruments) record(ctx context.Context, trip pglimit.RoundTrip) {
	i.trips.Record(ctx, trip.Duration.Seconds(), metric.WithAttributes(
		attribute.String("limiter", trip.Limiter), attribute.String("strategy", trip.Strategy),
		attribute.String("operation", trip.Operation), attribute.String("outcome", trip.Outcome),
	))
}
