package bench

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// What is sampled adds up to all that there was, wherever the run ends, and stays in place
// while the server does not answer.
func TestSamplesAddUp(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		length time.Duration // of the run, of intervals of 100 ms
		points int
		slow   bool // the server does not answer from 0.25 s to 1.2 s
	}{
		{"whole intervals", 2 * time.Second, 20, false},
		{"the last is shorter", 1950 * time.Millisecond, 20, false},
		{"answers after the end", 2400 * time.Millisecond, 20, false},
		{"interrupted", 730 * time.Millisecond, 8, false},
		{"a server that is away", 2 * time.Second, 20, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				stop := follow(t.Context(), 100*time.Millisecond, func(ctx context.Context) sample {
					since := time.Since(begin)
					s := sample{trips: since.Milliseconds(), known: true, position: position{wal: since.Milliseconds()}}
					if away := 1200*time.Millisecond - since; c.slow && since > 250*time.Millisecond && away > 0 {
						select {
						case <-time.After(away):
						case <-ctx.Done():
						}
						s.known = false
					}
					if ctx.Err() != nil {
						s.known = false
					}
					return s
				})
				time.Sleep(c.length)
				samples := stop()
				m := measured{
					samples: samples, elapsed: min(c.length, 2*time.Second),
					timeline: &timeline{width: 100 * time.Millisecond, slots: make([]interval, 20)},
				}
				series := m.series()
				var trips, wal int64
				for i, p := range series {
					trips += p.RoundTrips
					if p.WALBytes != nil {
						wal += *p.WALBytes
					}
					if end := p.Seconds * 1000; c.slow && end > 1400 && end < 2000 && p.RoundTrips != 100 {
						t.Errorf("point %d, to %v ms: %d round trips, want 100", i, end, p.RoundTrips)
					}
				}
				if len(series) != c.points || trips != c.length.Milliseconds() {
					t.Errorf("%d points with %d round trips, want %d with %d", len(series), trips, c.points, c.length.Milliseconds())
				}
				if last := series[len(series)-1]; last.WALBytes == nil || !c.slow && wal != trips {
					t.Errorf("%d bytes of WAL, want %d; those of the last point: %v", wal, trips, last.WALBytes)
				}
			})
		})
	}
}
