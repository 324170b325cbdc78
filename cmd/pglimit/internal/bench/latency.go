package bench

import (
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// Range and resolution of latencies: two significant digits, which is 1 %. A third would
// make a histogram eight times as large, and each caller has some.
const (
	shortestLatency = 100 * time.Nanosecond
	longestLatency  = 10 * time.Minute
	latencyDigits   = 2
)

func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(int64(shortestLatency), int64(longestLatency), latencyDigits)
}

// few latencies are kept as they are: a caller that waits for Postgres has not more in an
// interval, and a histogram takes 25 kB, which would have to be added up.
const few = 64

// latencies of one caller in an interval.
type latencies struct {
	few  []int64
	many *hdrhistogram.Histogram // nil: no interval had more than few
}

func (l *latencies) record(d time.Duration) {
	value := int64(min(max(d, shortestLatency), longestLatency))
	if len(l.few) < few {
		l.few = append(l.few, value)
		return
	}
	if l.many == nil {
		l.many = newHistogram()
	}
	_ = l.many.RecordValue(value)
}

// clear keeps the room for what comes.
func (l *latencies) clear() {
	l.few = l.few[:0]
	if l.many != nil && l.many.TotalCount() > 0 {
		l.many.Reset()
	}
}

// spread is the latencies of all callers in an interval, or in all of them.
type spread struct {
	few  *hdrhistogram.Histogram // nil: none
	many []int64                 // the bars of the callers' histograms, added up; nil: none
}

// add is called with a lock held. Adding up bars is ten times as fast as the histogram's own
// Merge, which looks for the bar of each value.
func (s *spread) add(l *latencies) {
	if len(l.few) > 0 && s.few == nil {
		s.few = newHistogram()
	}
	for _, value := range l.few {
		_ = s.few.RecordValue(value)
	}
	if l.many != nil && l.many.TotalCount() > 0 {
		s.addBars(l.many.Export().Counts)
	}
}

func (s *spread) addBars(bars []int64) {
	if s.many == nil {
		s.many = slices.Clone(bars)
		return
	}
	for i, n := range bars {
		s.many[i] += n
	}
}

// join adds another's.
func (s *spread) join(other spread) {
	if other.few != nil {
		s.addBars(other.few.Export().Counts)
	}
	if other.many != nil {
		s.addBars(other.many)
	}
}

// histogram of all. It may be empty.
func (s spread) histogram() *hdrhistogram.Histogram {
	var sum spread
	sum.join(s)
	snapshot := newHistogram().Export()
	snapshot.Counts = sum.many
	return hdrhistogram.Import(snapshot)
}

// curve are the percentiles that a picture of all of them needs.
var curve = []float64{0, 10, 20, 30, 40, 50, 60, 70, 75, 80, 85, 90, 92.5, 95, 97, 98, 99, 99.3, 99.5, 99.7, 99.8, 99.9, 99.93, 99.95, 99.97, 99.98, 99.99}

func (s spread) latency() result.Latency {
	h := s.histogram()
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

func (s spread) point() result.PointLatency {
	h := s.histogram()
	if h.TotalCount() == 0 {
		return result.PointLatency{}
	}
	return result.PointLatency{
		Mean: round(h.Mean()/1000, 1), P50: microseconds(h.ValueAtPercentile(50)),
		P99: microseconds(h.ValueAtPercentile(99)), Max: microseconds(h.Max()),
	}
}

func microseconds(ns int64) float64 { return round(float64(ns)/1000, 1) }
