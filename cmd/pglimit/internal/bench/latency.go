package bench

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// Range and resolution of latencies: two significant digits, which is 1 %.
const (
	shortestLatency = 100 * time.Nanosecond
	longestLatency  = 10 * time.Minute
	latencyDigits   = 2
)

func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(int64(shortestLatency), int64(longestLatency), latencyDigits)
}

// curve are the percentiles that a picture of all of them needs.
var curve = []float64{0, 10, 20, 30, 40, 50, 60, 70, 75, 80, 85, 90, 92.5, 95, 97, 98, 99, 99.3, 99.5, 99.7, 99.8, 99.9, 99.93, 99.95, 99.97, 99.98, 99.99}

func latencyOf(h *hdrhistogram.Histogram) result.Latency {
	if h.TotalCount() == 0 {
		return result.Latency{}
	}
	at := func(percent float64) float64 { return microseconds(h.ValueAtPercentile(percent)) }
	l := result.Latency{
		Count: h.TotalCount(), Mean: round(h.Mean()/1000, 1),
		P50: at(50), P90: at(90), P99: at(99), P999: at(99.9), P9999: at(99.99), Max: microseconds(h.Max()),
	}
	for _, percent := range curve {
		// The slowest of n is no better than a percentile of 1 - 1/n.
		if percent > 0 && percent > 100*(1-1/float64(l.Count)) {
			break
		}
		l.Curve = append(l.Curve, result.CurvePoint{Percent: percent, US: at(percent)})
	}
	return l
}

func microseconds(ns int64) float64 { return round(float64(ns)/1000, 1) }
