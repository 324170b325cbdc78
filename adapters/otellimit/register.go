package otellimit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/pglimit/ratelimit/adapters/internal/meters"
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
			err = errors.Join(err, fmt.Errorf(
				"otellimit: limiter %d of Register is the second with the name %q and the strategy %s: name each once",
				i, s.name, s.strategy))
		default:
			err = errors.Join(err, fmt.Errorf("otellimit: limiter %d of Register, with the name %q and the strategy %s, "+
				"is registered with this meter already: register it once, or Unregister it first", i, s.name, s.strategy))
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
	stats    map[string]metric.Int64Observable // by Stat.Name
	settings []metric.Float64ObservableGauge   // of meters.Settings
	trips    metric.Float64Histogram
}

// make the instruments, and return those that are observed.
func (i *instruments) make(meter metric.Meter) (all []metric.Observable, err error) {
	i.trips, err = meter.Float64Histogram("pglimit.round_trip.duration", metric.WithUnit("s"),
		metric.WithDescription(meters.RoundTrips), metric.WithExplicitBucketBoundaries(meters.Buckets...))
	for _, setting := range meters.Settings {
		gauge, refused := meter.Float64ObservableGauge("pglimit."+setting.Name,
			metric.WithUnit(setting.Unit), metric.WithDescription(setting.Help))
		i.settings, all, err = append(i.settings, gauge), append(all, gauge), errors.Join(err, refused)
	}
	for stat := range (pglimit.Stats{}).All() {
		if i.stats[stat.Name] != nil {
			continue
		}
		var refused error
		if name := "pglimit." + stat.Name; stat.Gauge {
			i.stats[stat.Name], refused = meter.Int64ObservableGauge(name, metric.WithDescription(stat.Help))
		} else {
			i.stats[stat.Name], refused = meter.Int64ObservableCounter(name, metric.WithDescription(stat.Help))
		}
		all, err = append(all, i.stats[stat.Name]), errors.Join(err, refused)
	}
	return all, err
}

func (i *instruments) observe(observer metric.Observer, limiter *pglimit.Limiter) {
	config := limiter.Config()
	of := []attribute.KeyValue{
		attribute.String("limiter", config.Name), attribute.String("strategy", limiter.Strategy().Name()),
	}
	whole := metric.WithAttributes(of...)
	for n, setting := range meters.Settings {
		if value := setting.Value(config); !math.IsInf(value, 1) {
			observer.ObserveFloat64(i.settings[n], value, whole)
		}
	}
	for stat := range limiter.Stats().All() {
		with := whole
		if stat.Label != "" {
			with = metric.WithAttributes(append(of[:2:2], attribute.String(stat.Label, stat.LabelValue))...)
		}
		observer.ObserveInt64(i.stats[stat.Name], stat.Value, with)
	}
}

// record is a Config.OnRoundTrip.
func (i *instruments) record(ctx context.Context, trip pglimit.RoundTrip) {
	i.trips.Record(ctx, trip.Duration.Seconds(), metric.WithAttributes(
		attribute.String("limiter", trip.Limiter), attribute.String("strategy", trip.Strategy),
		attribute.String("operation", trip.Operation), attribute.String("outcome", trip.Outcome),
	))
}
