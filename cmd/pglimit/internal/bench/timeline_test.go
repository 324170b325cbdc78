package bench

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
)

// Each answer is in the interval in which it came, with its latency, and what came after
// the end is in the last.
func TestSeriesAddsUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := openScenario(4, 1000)
		got := fakeDrive(t, c, stalling()).ran(t.Context(), 2*time.Second)
		if len(got.Series) != 20 || got.Series[0].Seconds != 0.1 {
			t.Fatalf("%d points of %v s, want 20 of 0.1 s", len(got.Series), got.Series[0].Seconds)
		}
		var sum int64
		slow := 0
		for i, p := range got.Series {
			sum += p.Granted
			if stalled := p.Seconds > 0.55 && p.Seconds < 1.55; stalled && p.Granted > 0 {
				t.Errorf("point %d, to %v s: %d granted while the server stalled", i, p.Seconds, p.Granted)
			}
			if p.Slowest > 990_000 {
				slow++
			}
		}
		if sum != got.Allowed || sum == 0 || slow != 1 {
			t.Errorf("%d granted in the series, %d in all; %d intervals with a slow one, want 1", sum, got.Allowed, slow)
		}
	})
}

// Each caller's figures reach the timeline in the interval in which they were made, with
// their first error.
func TestTimelineAddsUpCallers(t *testing.T) {
	t.Parallel()
	line := newTimeline(time.Second, 2)
	first, second := newRecorder(newBudget(0, 1)), newRecorder(newBudget(0, 1))
	for _, r := range []*recorder{first, second} {
		r.timeline = line
		r.begin(window{from: time.Hour, until: time.Hour + time.Second}) // by the clock
		if r.end != time.Hour+100*time.Millisecond {                     // it would hand over at each answer
			t.Errorf("the first interval ends at %v", r.end)
		}
	}
	took := time.Millisecond
	at := func(ms int) time.Duration { return time.Hour + time.Duration(ms)*time.Millisecond }
	first.decision(0, 0, &pglimit.Decision{Allowed: true, Granted: 3}, took, at(50), true)
	first.failure(0, errors.New("one"), took, at(60))
	second.decision(0, 0, &pglimit.Decision{Allowed: true, Granted: 4}, took, at(99), true)
	second.decision(0, 0, &pglimit.Decision{Contended: true}, took, at(100), true)
	second.failure(0, errors.New("two"), took, at(100))
	second.failure(0, errors.New("three"), took, at(150))
	second.unserved(took, at(350))
	first.decision(0, 0, &pglimit.Decision{}, took, at(1500), false)
	first.finish()
	second.finish()
	for i, want := range []struct{ granted, tokens, denied, contended, failed int64 }{0: {2, 7, 0, 0, 1}, 1: {0, 0, 1, 1, 2}, 3: {0, 0, 0, 0, 1}, 9: {0, 0, 1, 0, 0}} {
		s := &line.slots[i]
		if s.granted != want.granted || s.tokens != want.tokens || s.denied != want.denied || s.contended != want.contended || s.failed() != want.failed {
			t.Errorf("interval %d: %+v, %d failed; want %+v", i, s, s.failed(), want)
		}
	}
	total := line.total()
	if total.granted != 2 || total.tokens != 7 || total.denied != 2 || total.contended != 1 || total.grantedInTime != 2 || total.deniedIn != 1 {
		t.Errorf("%+v", total)
	}
	if f := total.errors[kindOther]; f.count != 3 || f.first != "one" {
		t.Errorf("%d failures, the first %q; want 3, one", f.count, f.first)
	}
}

// A caller that is answered so fast that its room for latencies is full hands over before its interval is over.
func TestCallersKeepFewLatencies(t *testing.T) {
	t.Parallel()
	r := newRecorder(newBudget(0, 1))
	r.timeline = newTimeline(time.Hour, 1)
	r.begin(window{until: time.Hour})
	for range 10*mostLatencies + 1 {
		r.decision(0, 0, &pglimit.Decision{Allowed: true}, time.Millisecond, 0, true)
	}
	if kept := cap(r.tally.grants); kept > 2*mostLatencies {
		t.Errorf("there is room for %d latencies", kept)
	}
	r.finish()
	if got := r.timeline.grants.TotalCount(); got != 10*mostLatencies+1 {
		t.Errorf("%d latencies", got)
	}
}
