package bench

import (
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
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

// tally is what was answered in some interval: by one caller, or by all.
type tally struct {
	granted, denied, contended int64 // requests; the contended ones are among the denied
	tokens                     int64 // that were granted
	grantedInTime, deniedIn    int64 // answered before the end of the run
	errors                     map[string]*failure

	// Latencies of grants, of denials, and of waits that were given up. Nil: none yet.
	grants, denials, waits *hdrhistogram.Histogram
}

func record(h **hdrhistogram.Histogram, d time.Duration) {
	if *h == nil {
		*h = newHistogram()
	}
	_ = (*h).RecordValue(int64(min(max(d, shortestLatency), longestLatency)))
}

func (t *tally) fail(kind, text string, count int64) {
	if t.errors == nil {
		t.errors = make(map[string]*failure)
	}
	f := t.errors[kind]
	if f == nil {
		f = &failure{}
		t.errors[kind] = f
	}
	if f.first == "" {
		f.first = text
	}
	f.count += count
}

func (t *tally) failed() (sum int64) {
	for _, f := range t.errors {
		sum += f.count
	}
	return sum
}

// add merges other into t.
func (t *tally) add(other *tally) {
	t.granted += other.granted
	t.denied += other.denied
	t.contended += other.contended
	t.tokens += other.tokens
	t.grantedInTime += other.grantedInTime
	t.deniedIn += other.deniedIn
	for kind, f := range other.errors {
		t.fail(kind, f.first, f.count)
	}
	merge(&t.grants, other.grants)
	merge(&t.denials, other.denials)
	merge(&t.waits, other.waits)
}

func merge(into **hdrhistogram.Histogram, from *hdrhistogram.Histogram) {
	if from == nil || from.TotalCount() == 0 {
		return
	}
	if *into == nil {
		*into = newHistogram()
	}
	(*into).Merge(from)
}

// clear empties t, and keeps its histograms for what comes.
func (t *tally) clear() {
	for _, h := range []*hdrhistogram.Histogram{t.grants, t.denials, t.waits} {
		if h != nil && h.TotalCount() > 0 {
			h.Reset()
		}
	}
	*t = tally{grants: t.grants, denials: t.denials, waits: t.waits}
}

// timeline is what all callers were answered, interval by interval. A caller counts by
// itself and hands over when an interval is over, so the lock is taken a few times a
// second by each.
type timeline struct {
	width time.Duration // of an interval
	mu    sync.Mutex
	slots []tally // the last also has what came after the end
}

// newTimeline of a run. Without a series it is one interval.
func newTimeline(length time.Duration, callers int, series bool) *timeline {
	width := length
	if series {
		width = min(length, intervalFor(length, callers))
	}
	return &timeline{width: width, slots: make([]tally, (length+width-1)/width)}
}

// intervalFor returns an interval such that there are about a hundred of them, but none
// under 100 ms, nor so short that handing over takes time: it takes about 10 µs, which
// each caller may spend in a hundredth of a core together.
func intervalFor(length time.Duration, callers int) time.Duration {
	wanted := max(length/120, time.Duration(callers)*time.Millisecond)
	for interval := 100 * time.Millisecond; ; interval *= 10 {
		for _, round := range []time.Duration{interval, 2 * interval, 5 * interval} {
			if round >= wanted {
				return round
			}
		}
	}
}

// slot returns the number of the interval of that moment, and when it ends.
func (t *timeline) slot(since time.Duration) (number int, end time.Duration) {
	number = min(max(int(since/t.width), 0), len(t.slots)-1)
	if number == len(t.slots)-1 {
		return number, forever
	}
	return number, time.Duration(number+1) * t.width
}

// forever is after the end of every run.
const forever = time.Duration(1<<63 - 1)

// hand adds what a caller has counted in an interval.
func (t *timeline) hand(number int, counted *tally) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.slots[number].add(counted)
}

// answered is how many decisions were handed over so far.
func (t *timeline) answered() (sum int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.slots {
		sum += s.granted + s.denied
	}
	return sum
}

// total is all of it.
func (t *timeline) total() *tally {
	t.mu.Lock()
	defer t.mu.Unlock()
	sum := &tally{}
	for i := range t.slots {
		sum.add(&t.slots[i])
	}
	return sum
}
