package promlimit_test

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/pglimit/ratelimit/adapters/promlimit"

	"github.com/pglimit/ratelimit/adapters/internal/metertest"
)

// histograms by their labels.
func histograms(t *testing.T, registry *prometheus.Registry) map[string]*dto.Histogram {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]*dto.Histogram{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			labels := family.GetName()
			for _, label := range metric.GetLabel() {
				labels += fmt.Sprintf(" %s=%s", label.GetName(), label.GetValue())
			}
			if metric.Histogram != nil {
				all[labels] = metric.GetHistogram()
			}
		}
	}
	return all
}

func TestRoundTripsOfALimiter(t *testing.T) {
	t.Parallel()
	limiter := metertest.NewLimiter(t, "api", "token_bucket", nil)
	other := metertest.NewLimiter(t, "login", "upsert", nil)
	registry := registered(t, promlimit.New(limiter), promlimit.New(other))
	if len(histograms(t, registry)) != 0 {
		t.Error("there are round trips before the first request")
	}
	metertest.Use(t, limiter, 3)
	metertest.Use(t, other, 1)
	all := histograms(t, registry)
	for labels, count := range map[string]uint64{
		"limiter=api operation=take outcome=ok strategy=token_bucket":      3*3 + 1, // one denial was not known
		"limiter=api operation=take outcome=refused strategy=token_bucket": 3,
		"limiter=login operation=take outcome=ok strategy=upsert":          4,
		"limiter=login operation=take outcome=refused strategy=upsert":     1,
	} {
		if got := all["pglimit_round_trip_duration_seconds "+labels].GetSampleCount(); got != count {
			t.Errorf("%s: %d, want %d", labels, got, count)
		}
	}
	if len(all) != 4 || limiter.Stats().RoundTrips != 13 {
		t.Errorf("%d histograms, %+v", len(all), limiter.Stats())
	}
}

// Seconds, in the classic buckets and, within a tenth, in the native ones.
func TestBucketsOfRoundTrips(t *testing.T) {
	t.Parallel()
	synctest.Test(t, bucketsOfRoundTrips)
}

func bucketsOfRoundTrips(t *testing.T) {
	limiter := metertest.NewLimiter(t, "api", "upsert", nil)
	registry := registered(t, promlimit.New(limiter))
	for _, key := range []string{"300us", "20ms", "21ms", "40ms", "50s"} {
		_, _ = limiter.Allow(t.Context(), key)
	}
	h := histograms(t, registry)["pglimit_round_trip_duration_seconds limiter=api operation=take outcome=ok strategy=upsert"]
	if sum := h.GetSampleSum(); h.GetSampleCount() != 5 || sum < 50.0812 || sum > 50.0814 {
		t.Errorf("%d, %v s", h.GetSampleCount(), sum)
	}
	classic := map[float64]uint64{}
	for _, bucket := range h.GetBucket() {
		classic[bucket.GetUpperBound()] = bucket.GetCumulativeCount()
	}
	if classic[.0005] != 1 || classic[.01] != 1 || classic[.025] != 3 || classic[.05] != 4 || classic[10] != 4 {
		t.Errorf("%v", classic)
	}
	var native int64 // buckets with something in them: 20 and 21 ms are not told apart, or are
	for _, span := range h.GetPositiveSpan() {
		native += int64(span.GetLength())
	}
	if h.GetSchema() != 3 || native < 4 { // schema 3: a bucket is 9 % wider than the one before
		t.Errorf("schema %d with %d buckets", h.GetSchema(), native)
	}
}
