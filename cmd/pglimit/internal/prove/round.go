//go:build unix

package prove

import (
	"cmp"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/pglimit/ratelimit/strategies/audit"
)

// round is a fault, the time before and after it, and keys of its own: so what it leaves unknown excuses nothing else.
type round struct {
	number    int
	fault     *fault
	from, to  int64 // of the fault; 0: not yet
	recovered time.Duration
	log       audit.Log
	calls     []told
	unknown   int64
	counts    []porcupine.Operation
	counted   int64 // tokens that the counter is known to have granted
	permits   []line
}

// told is when a request was sent and answered.
type told struct {
	began, ended int64
	worker       int
	known, waits bool
}

// add a request whose outcome is final. A lock is held.
func (r *round) add(l line) error {
	if l.Permit > 0 {
		r.permits = append(r.permits, l)
		return nil
	}
	r.calls = append(r.calls, told{l.Began, l.Ended, l.worker, l.Error == "" && !l.Unknown, l.Waits})
	if l.Unknown {
		r.unknown++
	}
	if l.Limiter == "counter" && (l.Tokens > 0 || l.Granted > 0) {
		r.counted += l.Granted
		r.counts = append(r.counts, operation(l))
	}
	return r.log.Add(l.Record)
}

// hasRecovered says whether each worker has had an answer to a request that it sent behind the fault.
func (r *round) hasRecovered(workers []int) bool {
	var seen []int
	last := r.to
	for i := len(r.calls) - 1; i >= 0 && r.calls[i].ended >= r.to-int64(time.Minute); i-- {
		if c := r.calls[i]; c.known && c.began > r.to {
			seen = append(seen, c.worker)
		}
	}
	for _, w := range workers {
		if !slices.Contains(seen, w) {
			return false
		}
	}
	for _, w := range workers {
		first := int64(1<<63 - 1)
		for _, c := range r.calls {
			if c.known && c.worker == w && c.began > r.to {
				first = min(first, c.ended)
			}
		}
		last = max(last, first)
	}
	r.recovered = time.Duration(last - r.to)
	return true
}

// Fault is what all rounds with a fault showed.
type Fault struct {
	Name      string `json:"name"`
	Does      string `json:"does"`
	Skipped   string `json:"skipped,omitempty"`
	Times     int    `json:"times"`
	During    int64  `json:"decisions_during"`
	After     int64  `json:"decisions_after"`
	Unknown   int64  `json:"unknown"`
	Over      int64  `json:"over_tokens"` // with what was charged twice, and permits beyond the places
	Undue     int64  `json:"undue_denials"`
	Lost      int64  `json:"lost_durable_tokens"`
	Slowest   int64  `json:"slowest_ns"` // answer to a request sent before the end of the fault, or an error
	Recovered int64  `json:"recovered_ns"`
}

// judge adds what the round showed. owed is what the counter owes in the database.
func (r *round) judge(f *Fault, owed int64) (findings []string) {
	f.Times++
	for _, c := range r.calls {
		if !c.waits && c.began < r.to && c.ended > r.from {
			f.Slowest = max(f.Slowest, c.ended-c.began)
		}
		switch {
		case !c.known || c.ended < r.from:
		case c.ended <= r.to:
			f.During++
		default:
			f.After++
		}
	}
	f.Unknown += r.unknown
	f.Recovered = max(f.Recovered, int64(r.recovered))
	for _, j := range r.log.Check() {
		f.Over += j.Over.Tokens + j.Twice
		f.Undue += j.NotDueTotal
		if !j.OK() {
			findings = append(findings, j.Limiter+": "+j.String())
		}
	}
	if lost := r.counted - owed; lost > 0 {
		f.Lost += lost
		findings = append(findings, "counter: granted tokens that the database has forgotten")
	}
	return findings
}

// mostPermits is how many places were held at once.
func mostPermits(spans []line) (most int64) {
	type change struct{ at, by int64 }
	var changes []change
	for _, s := range spans {
		changes = append(changes, change{s.Began, s.Permit}, change{s.Ended, -s.Permit})
	}
	slices.SortFunc(changes, func(a, b change) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.by, b.by)) })
	held := int64(0)
	for _, c := range changes {
		held += c.by
		most = max(most, held)
	}
	return most
}
