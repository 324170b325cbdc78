package bench

import (
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/pglimit/ratelimit/pglimit"
)

// Range and resolution of latencies: three digits, of 64 ns at the finest.
const (
	shortestLatency = 100 * time.Nanosecond
	longestLatency  = 10 * time.Minute
	latencyDigits   = 3
)

func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(int64(shortestLatency), int64(longestLatency), latencyDigits)
}

// recorder is what one caller saw. It is the caller's own, so recording takes no
// lock and shares no cache line; when the run is over, recorders are merged.
type recorder struct {
	measuring bool // false during the warm-up, of which only the history is kept

	latency   *hdrhistogram.Histogram
	inTime    int64 // decisions that came before the end of the run
	allowed   int64
	denied    int64 // contended ones included
	contended int64
	errors    map[string]*failure
	history   history

	// answered decisions are what the progress display reads meanwhile: as they were
	// at the time published.
	answered  atomic.Int64
	published time.Duration

	_ [64]byte // and no other's are in the last cache line
}

func newRecorder(b *budget) *recorder {
	return &recorder{latency: newHistogram(), errors: make(map[string]*failure), history: newHistory(b)}
}

// decision records an answer that took so long, when it came, and whether that was
// before the end of the run.
func (r *recorder) decision(key uint32, d *pglimit.Decision, took, at time.Duration, inTime bool) {
	// A decision without a time cannot be audited (see internal/published). If it
	// is a denial, no verdict on the others depends on it.
	switch {
	case !d.At.IsZero():
		r.history.answer(key, d)
	case d.Allowed:
		r.history.lose(key)
	}
	if !r.measuring {
		return
	}
	switch kindOf(d) {
	case granted:
		r.allowed++
	case contended:
		r.contended++
		r.denied++
	case denied:
		r.denied++
	}
	if inTime {
		r.inTime++
	}
	if at-r.published > publishInterval {
		r.answered.Store(r.allowed + r.denied)
		r.published = at
	}
	r.took(took)
}

// publishInterval is short for a display, and long for an atomic operation that takes
// as long as all else here.
const publishInterval = 10 * time.Millisecond

// failure records a request that has no decision. An error that is an answer has no
// place among the latencies of decisions: refusing is often faster, and waiting for a
// deadlock slower. A wait that was given up has its place there, as long as it was: left
// out, a server that stalls would look fast.
func (r *recorder) failure(key uint32, err error, took time.Duration) {
	name, lost := classify(err)
	if lost {
		r.history.lose(key)
	}
	if !r.measuring {
		return
	}
	if name == kindUnanswered {
		err = nil // that its context ended says nothing
	}
	r.fail(name, err)
	if stillWaiting(name) {
		r.took(took)
	}
}

// unserved records an arrival that was never sent, after it had waited so long: the
// time it would have taken is longer.
func (r *recorder) unserved(waited time.Duration) {
	if r.measuring {
		r.fail(kindUnserved, nil)
		r.took(waited)
	}
}

func (r *recorder) fail(name string, err error) {
	f := r.errors[name]
	if f == nil {
		f = &failure{}
		if err != nil {
			f.first = err.Error()
		}
		r.errors[name] = f
	}
	f.count++
}

func (r *recorder) took(d time.Duration) {
	_ = r.latency.RecordValue(int64(min(max(d, shortestLatency), longestLatency)))
}
