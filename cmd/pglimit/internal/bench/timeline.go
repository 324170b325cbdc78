package bench

import (
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// answered is how many requests got which answer.
type answered struct {
	granted, denied, contended int64 // requests; the contended ones are among the denied
	tokens                     int64 // that were granted
	grantedInTime, deniedIn    int64 // answered before the end of the run
	slowest                    time.Duration
	errors                     map[string]*failure
}

func (a *answered) fail(kind, text string, count int64) {
	if a.errors == nil {
		a.errors = make(map[string]*failure)
	}
	f := a.errors[kind]
	if f == nil {
		f = &failure{}
		a.errors[kind] = f
	}
	if f.first == "" {
		f.first = text
	}
	f.count += count
}

func (a *answered) failed() (sum int64) {
	for _, f := range a.errors {
		sum += f.count
	}
	return sum
}

func (a *answered) add(other *answered) {
	a.granted += other.granted
	a.denied += other.denied
	a.contended += other.contended
	a.tokens += other.tokens
	a.grantedInTime += other.grantedInTime
	a.deniedIn += other.deniedIn
	a.slowest = max(a.slowest, other.slowest)
	for kind, f := range other.errors {
		a.fail(kind, f.first, f.count)
	}
}

// tally is what one caller was answered since it last handed over: numbers, and the latencies of grants, of denials, and
// of waits that were given up.
type tally struct {
	answered

	grants, denials, waits []time.Duration
}

// mostLatencies is how many latencies a caller keeps before it hands over: 8 kB. To record so many in a histogram takes
// some 20 µs.
const mostLatencies = 1024

func (t *tally) full() bool { return max(len(t.grants), len(t.denials), len(t.waits)) >= mostLatencies }

func (t *tally) clear() {
	*t = tally{grants: t.grants[:0], denials: t.denials[:0], waits: t.waits[:0]}
}

// timeline is what all callers were answered: the numbers interval by interval, the latencies in all. A caller counts by
// itself and hands over when an interval is over, so the lock is taken a few times a second by each.
type timeline struct {
	width time.Duration // of an interval

	mu                     sync.Mutex
	slots                  []answered // the last also has what came after the end
	grants, denials, waits *hdrhistogram.Histogram
}

// newTimeline of a run: about a hundred intervals, but none under 100 ms, nor so short that handing over takes time. That
// takes about 10 µs, and all callers together may spend a hundredth of a core on it.
func newTimeline(length time.Duration, callers int) *timeline {
	const shortest = 100 * time.Millisecond
	width := min(length, max(length/100, time.Duration(callers)*time.Millisecond, shortest).Round(shortest))
	return &timeline{
		width: width, slots: make([]answered, (length+width-1)/width),
		grants: newHistogram(), denials: newHistogram(), waits: newHistogram(),
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
	t.slots[number].add(&counted.answered)
	record(t.grants, counted.grants)
	record(t.denials, counted.denials)
	record(t.waits, counted.waits)
}

func record(h *hdrhistogram.Histogram, all []time.Duration) {
	for _, took := range all {
		_ = h.RecordValue(int64(min(max(took, shortestLatency), longestLatency))) // it is in the range
	}
}

// total is all of it.
func (t *timeline) total() (sum answered) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.slots {
		sum.add(&t.slots[i])
	}
	return sum
}
