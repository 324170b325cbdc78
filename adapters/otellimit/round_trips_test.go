package otellimit_test

import (
	"testing"
	"testing/synctest"

	"github.com/pglimit/ratelimit/adapters/internal/metertest"
)

func TestRoundTripsOfALimiter(t *testing.T) {
	t.Parallel()
	meter, reader := newMeter()
	limiter := metertest.NewLimiter(t, "api", "token_bucket", nil)
	other := metertest.NewLimiter(t, "login", "upsert", nil)
	registration := register(t, meter, limiter, other)
	metertest.Use(t, limiter, 3)
	metertest.Use(t, other, 1)
	if err := registration.Unregister(); err != nil {
		t.Fatal(err)
	}
	metertest.Use(t, limiter, 1) // is not told any more
	_, all := collect(t, reader)
	for attributes, count := range map[string]uint64{
		"limiter=api operation=take outcome=ok strategy=token_bucket":      3*3 + 1, // one denial was not known
		"limiter=api operation=take outcome=refused strategy=token_bucket": 3,
		"limiter=login operation=take outcome=ok strategy=upsert":          4,
		"limiter=login operation=take outcome=refused strategy=upsert":     1,
	} {
		if got := all["pglimit.round_trip.duration s "+attributes].Count; got != count {
			t.Errorf("%s: %d, want %d", attributes, got, count)
		}
	}
	if len(all) != 4 || limiter.Stats().RoundTrips != 13+4 {
		t.Errorf("%d histograms, %+v", len(all), limiter.Stats())
	}
}

func TestBucketsOfRoundTrips(t *testing.T) {
	t.Parallel()
	synctest.Test(t, bucketsOfRoundTrips)
}

func bucketsOfRoundTrips(t *testing.T) {
	meter, reader := newMeter()
	limiter := metertest.NewLimiter(t, "api", "upsert", nil)
	register(t, meter, limiter)
	for _, key := range []string{"300us", "20ms", "21ms", "40ms", "50s"} {
		_, _ = limiter.Allow(t.Context(), key)
	}
	_, all := collect(t, reader)
	h := all["pglimit.round_trip.duration s limiter=api operation=take outcome=ok strategy=upsert"]
	counts := map[float64]uint64{}
	for i, bound := range h.Bounds {
		counts[bound] = h.BucketCounts[i]
	}
	if h.Count != 5 || h.Sum < 50.0812 || h.Sum > 50.0814 || counts[.0005] != 1 || counts[.025] != 2 || counts[.05] != 1 || h.BucketCounts[len(h.Bounds)] != 1 {
		t.Errorf("%+v", h)
	}
}
