package bench

import (
	"sync"
	"time"
)

// answered is how many requests got which answer.
type answered struct {
	granted, denied, contended int64 // requests; the contended ones are among the denied
	tokens                     int64 // that were granted
	grantedInTime, deniedIn    int64 // answered before the end of the run
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
	for kind, f := range other.errors {
		a.fail(kind, f.first, f.count)
	}
}

// tally is what one caller was answered in an interval: numbers, and the latencies of
// grants, of denials, and of waits that were given up.
type tally struct {
	answered

	grants, denials, waits latencies
}

func (t *tally) clear() {
	t.grants.clear()
	t.denials.clear()
	t.waits.clear()
	t.answered = answered{}
}

// interval is what all callers were answered in an interval.
type interval struct {
	answered

	grants, denials, waits spread
}

func (i *interval) add(t *tally) {
	i.answered.add(&t.answered)
	i.grants.add(&t.grants)
	i.denials.add(&t.denials)
	i.waits.add(&t.waits)
}

// timeline is what all callers were answered, interval by interval. A caller counts by
// itself and hands over when an interval is over, so the lock is taken a few times a
// second by each.
type timeline struct {
	width time.Duration // of an interval
	mu    sync.Mutex
	slots []interval // the last also has what came after the end
}

// newTimeline of a run. Without a series it is one interval.
func newTimeline(length time.Duration, callers int, series bool) *timeline {
	width := length
	if series {
		width = min(length, intervalFor(length, callers))
	}
	return &timeline{width: width, slots: make([]interval, (length+width-1)/width)}
}

// intervalFor returns an interval such that there are about a hundred of them, but none
// under 100 ms, nor so short that handing over takes time: that takes about 10 µs, and all
// callers together may spend a hundredth of a core on it.
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

// decisions is how many were handed over so far.
func (t *timeline) decisions() (sum int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.slots {
		sum += s.granted + s.denied
	}
	return sum
}

// total is all of it.
func (t *timeline) total() *interval {
	t.mu.Lock()
	defer t.mu.Unlock()
	sum := &interval{}
	for i := range t.slots {
		slot := &t.slots[i]
		sum.answered.add(&slot.answered)
		sum.grants.join(slot.grants)
		sum.denials.join(slot.denials)
		sum.waits.join(slot.waits)
	}
	return sum
}
