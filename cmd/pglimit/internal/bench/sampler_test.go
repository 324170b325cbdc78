package bench

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// counting is a server whose counters rise by one in each millisecond. While it is away it
// does not answer.
type counting struct {
	start    time.Time
	from, to time.Duration // away
}

func (c counting) take(ctx context.Context) sample {
	ms := time.Since(c.start).Milliseconds()
	if at := time.Since(c.start); at >= c.from && at < c.to {
		select {
		case <-time.After(c.to - at):
		case <-ctx.Done():
		}
		return sample{trips: ms}
	}
	if ctx.Err() != nil {
		return sample{trips: ms}
	}
	return sample{trips: ms, known: true, position: position{wal: ms, xids: ms}}
}

// sampled is a run of ten intervals of 100 ms, sampled until stopped.
func sampled(ctx context.Context, c counting, stopped time.Duration) []sample {
	c.start = time.Now()
	stop := follow(ctx, 100*time.Millisecond, 10, c.take)
	time.Sleep(stopped)
	return stop()
}

// The last sample is of the very end, also of what came after the last interval.
func TestSamplesAreOfTheBoundaries(t *testing.T) {
	t.Parallel()
	for stopped, last := range map[time.Duration]int64{time.Second: 1000, 1042 * time.Millisecond: 1042} {
		synctest.Test(t, func(t *testing.T) {
			got := sampled(t.Context(), counting{}, stopped)
			if len(got) != 11 {
				t.Fatalf("%d samples of ten intervals, want 11", len(got))
			}
			for i, s := range got[:10] {
				if want := int64(100 * i); !s.known || s.trips != want {
					t.Errorf("sample %d is %+v, want it at %d ms", i, s, want)
				}
			}
			if s := got[10]; !s.known || s.trips != last {
				t.Errorf("the last sample is %+v, want it at %d ms", s, last)
			}
		})
	}
}

// An interrupted run has samples up to then. synctest fails if a goroutine is left.
func TestSamplesEndWithAnInterruptedRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, interrupt := context.WithCancel(t.Context())
		defer time.AfterFunc(250*time.Millisecond, interrupt).Stop()
		got := sampled(ctx, counting{}, 260*time.Millisecond)
		if len(got) != 4 || got[2].trips != 200 || !got[2].known || got[3].trips != 260 || got[3].known {
			t.Errorf("%+v; want 0, 100, 200 and 260 ms, the last without the server's figures", got)
		}
	})
}

// While the server is away its figures are unknown, those of the wire are not, and what
// comes afterwards is where it belongs.
func TestSamplesOfAServerThatIsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		got := sampled(t.Context(), counting{from: 250 * time.Millisecond, to: 650 * time.Millisecond}, time.Second)
		if len(got) != 11 {
			t.Fatalf("%d samples of ten intervals, want 11", len(got))
		}
		for i, s := range got {
			away := i >= 3 && i <= 6
			if s.known == away || s.trips != int64(100*i) {
				t.Errorf("sample %d is %+v, want it at %d ms, and known: %v", i, s, 100*i, !away)
			}
		}
	})
}

// A sample that is under way at the end is waited for: the last one comes after it.
func TestSamplesEndInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		taken := int64(0)
		stop := follow(t.Context(), 100*time.Millisecond, 10, func(context.Context) sample {
			taken++
			s := sample{trips: taken}
			if s.trips == 2 {
				time.Sleep(50 * time.Millisecond)
			}
			return s
		})
		time.Sleep(110 * time.Millisecond) // the second is under way
		if got := stop(); len(got) != 3 || got[0].trips != 1 || got[1].trips != 2 || got[2].trips != 3 {
			t.Errorf("%+v, want three in their order", got)
		}
	})
}

func TestPointsAreDifferencesOfSamples(t *testing.T) {
	t.Parallel()
	before := sample{trips: 10, known: true, position: position{wal: 1000, xids: 7}, deadlocks: 3}
	after := sample{trips: 25, known: true, position: position{wal: 1600, xids: 9}, deadlocks: 4}
	var p result.Point
	after.since(before, &p)
	if p.RoundTrips != 15 || *p.WALBytes != 600 || *p.TransactionIDs != 2 || *p.Deadlocks != 1 {
		t.Errorf("%d trips, %d bytes, %d ids, %d deadlocks; want 15, 600, 2, 1", p.RoundTrips, *p.WALBytes, *p.TransactionIDs, *p.Deadlocks)
	}
	after.deadlocks = 0 // a crash has reset them
	if after.since(before, &p); *p.Deadlocks != 0 {
		t.Errorf("%d deadlocks after a crash, want 0", *p.Deadlocks)
	}
}

// A point lacks the server's figures if either of its ends is unknown.
func TestPointsBesideAnUnknownSampleAreUnknown(t *testing.T) {
	t.Parallel()
	known, unknown := sample{trips: 1, known: true}, sample{trips: 2}
	for name, ends := range map[string][2]sample{"before": {unknown, known}, "after": {known, unknown}, "both": {unknown, unknown}} {
		var p result.Point
		ends[1].since(ends[0], &p)
		if p.WALBytes != nil || p.TransactionIDs != nil || p.Deadlocks != nil {
			t.Errorf("unknown %s: %+v, want no figures of the server", name, p)
		}
		if p.RoundTrips != ends[1].trips-ends[0].trips {
			t.Errorf("unknown %s: %d trips", name, p.RoundTrips)
		}
	}
}

// The wire's round trips are counted by us, so they are known whatever the server does.
func TestSampleOfAServerThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	if got := takeSample(t.Context(), nowhere(t), func() int64 { return 7 }); got != (sample{trips: 7}) {
		t.Errorf("%+v, want 7 trips and nothing known", got)
	}
}
