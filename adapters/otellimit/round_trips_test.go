package otellimit_test

import (
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/pglimit/ratelimit/adapters/otellimit"
	"github.com/pglimit/ratelimit/pglimit"
)

func newRoundTrips(t testing.TB, meter metric.Meter) *otellimit.RoundTrips {
	t.Helper()
	trips, err := otellimit.NewRoundTrips(meter)
	if err != nil {
		t.Fatal(err)
	}
	return trips
}

func TestRoundTripsOfALimiter(t *testing.T) {
	t.Parallel()
	meter, reader := newMeter()
	trips := newRoundTrips(t, meter)
	limiter := newLimiter(t, "api", "token_bucket", func(c *pglimit.Config) { c.OnRoundTrip = trips.Record })
	other := newLimiter(t, "login", "upsert", func(c *pglimit.Config) { c.OnRoundTrip = trips.Record })
	use(t, limiter, 3)
	use(t, other, 1)
	_, all := collect(t, reader)
	for attributes, count := range map[string]uint64{
		"pglimit.limiter=api pglimit.operation=take pglimit.strategy=token_bucket ":                    3*3 + 1, // one denial was not known
		"error.type=refused pglimit.limiter=api pglimit.operation=take pglimit.strategy=token_bucket ": 3,
		"pglimit.limiter=login pglimit.operation=take pglimit.strategy=upsert ":                        4,
		"error.type=refused pglimit.limiter=login pglimit.operation=take pglimit.strategy=upsert ":     1,
	} {
		if got := all["pglimit.round_trip.duration s "+attributes].Count; got != count {
			t.Errorf("%s: %d, want %d", attributes, got, count)
		}
	}
	if len(all) != 4 || limiter.Stats().RoundTrips != 13 {
		t.Errorf("%d histograms, %+v", len(all), limiter.Stats())
	}
}

func TestBucketsOfRoundTrips(t *testing.T) {
	t.Parallel()
	meter, reader := newMeter()
	trips := newRoundTrips(t, meter)
	for _, d := range []time.Duration{300 * time.Microsecond, 20 * time.Millisecond, 21 * time.Millisecond, 40 * time.Millisecond, time.Minute} {
		trips.Record(t.Context(), pglimit.RoundTrip{Limiter: "api", Strategy: "upsert", Operation: "lease", Outcome: "ok", Duration: d})
	}
	_, all := collect(t, reader)
	h := all["pglimit.round_trip.duration s pglimit.limiter=api pglimit.operation=lease pglimit.strategy=upsert "]
	counts := map[float64]uint64{}
	for i, bound := range h.Bounds {
		counts[bound] = h.BucketCounts[i]
	}
	if h.Count != 5 || h.Sum < 60.0812 || h.Sum > 60.0814 || counts[.0005] != 1 || counts[.025] != 2 || counts[.05] != 1 || h.BucketCounts[len(h.Bounds)] != 1 {
		t.Errorf("%+v", h)
	}
}
