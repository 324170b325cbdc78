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

	// answered decisions are what the progress display reads meanwhile.
	answered atomic.Int64
}

func newRecorder(b *budget) *recorder {
	return &recorder{latency: newHistogram(), errors: make(map[string]*failure), history: newHistory(b)}
}

// decision records an answer that took so long, and whether it came before the end
// of the run.
func (r *recorder) decision(key uint32, d *pglimit.Decision, took time.Duration, inTime bool) {
	e := event{key: key}
	switch {
	case d.Allowed:
		e.kind = granted
	case d.Contended:
		e.kind = contended
	default:
		e.kind = denied
	}
	// A decision without a time cannot be audited (see internal/published). If it
	// is a denial, no verdict on the others depends on it.
	switch {
	case !d.At.IsZero():
		e.at = d.At.UnixMicro()
		r.history.add(e)
	case d.Allowed:
		r.history.lose(key)
	}
	if !r.measuring {
		return
	}
	switch e.kind {
	case granted:
		r.allowed++
	case contended:
		r.contended++
		r.denied++
	case denied:
		r.denied++
	}
	r.answered.Add(1) // uncontended but for the display, so a few nanoseconds
	if inTime {
		r.inTime++
	}
	r.took(took)
}

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
