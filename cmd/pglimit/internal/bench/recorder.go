package bench

import (
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/pglimit/ratelimit/pglimit"
)

// Range and resolution of latencies: three significant digits, and steps of 64 ns at the
// finest.
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

	// answered is the number of decisions that the progress display reads meanwhile, as
	// it was at the time published.
	answered  atomic.Int64
	published time.Duration

	_ [64]byte // keeps others out of the last cache line
}

func newRecorder(b *budget) *recorder {
	return &recorder{latency: newHistogram(), errors: make(map[string]*failure), history: newHistory(b)}
}

// decision records an answer: how long it took, when it came, and whether that was before
// the end of the run.
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

// publishInterval is short for a display, and long beside the atomic operation, which
// takes as long as all else here.
const publishInterval = 10 * time.Millisecond

// failure records a request that got no decision. An error that is an answer does not
// count among the latencies of decisions: a refusal is often faster, and a deadlock
// slower. A wait that was given up does count, with the time that it lasted: without it,
// a server that stalls would look fast.
func (r *recorder) failure(key uint32, err error, took time.Duration) {
	name, lost := classify(err)
	if lost {
		r.history.lose(key)
	}
	if !r.measuring {
		return
	}
	if name == kindUnanswered {
		err = nil // it says only that its context ended
	}
	r.fail(name, err)
	if stillWaiting(name) {
		r.took(took)
	}
}

// unserved records an arrival that was never sent, with the time that it had waited. Its
// answer would have taken longer.
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
