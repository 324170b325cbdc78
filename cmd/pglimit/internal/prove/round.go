//go:build unix

package prove

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/pglimit/ratelimit/strategies/audit"
)

// round is a fault, the time before and after it, and keys of its own: so what it leaves unknown excuses nothing else.
type round struct {
	number   int
	fault    *fault
	from, to int64         // of the fault; 0: not yet
	first    map[int]int64 // when Postgres granted something to each worker after that
	log      audit.Log
	calls    []call
	unknown  int64
	counts   []porcupine.Operation
	counted  int64 // tokens that the counter is known to have granted
}

// call is when a request was sent and answered.
type call struct {
	began, ended int64
	known, waits bool
}

// add a request whose outcome is final.
func (r *round) add(l line) error {
	known := l.Error == "" && !l.Unknown
	r.calls = append(r.calls, call{l.Began, l.Ended, known, l.Limiter == "wait"})
	if l.Unknown && l.Limiter != "wait" { // who waits is told to give up, and that is counted like it
		r.unknown++
	}
	if l.Granted > 0 && l.Limiter != "leased" && r.to > 0 && l.Began > r.to {
		r.first[l.Worker] = min(cmp.Or(r.first[l.Worker], l.Ended), l.Ended)
	}
	if l.Limiter == "counter" && l.Tokens > 0 {
		r.counted += l.Granted
		r.counts = append(r.counts, operation(l))
	}
	if r.steps() { // grants are judged by the machine's clock, if it tells when they were made, and denials are not
		if l.Granted == 0 || l.ID != "" || l.Limiter == "calendar" || l.Ended-l.Began > int64(vague) {
			return nil
		}
		l.At, l.Delay, l.Tokens = audit.Time(l.Ended), 0, l.Granted
	}
	return r.log.Add(l.Record)
}

// vague is the longest call whose grant counts where the machine's clock is the measure.
const vague = 200 * time.Millisecond

func (r *round) steps() bool { return r.fault != nil && r.fault.name == clockStepped }

// Fault is what all rounds with a fault showed.
type Fault struct {
	Name      string `json:"name"`
	Does      string `json:"does"`
	Skipped   string `json:"skipped,omitempty"`
	Times     int    `json:"times"`
	During    int64  `json:"decisions_during"`
	After     int64  `json:"decisions_after"`
	Unknown   int64  `json:"unknown"`
	Over      int64  `json:"over_tokens"` // with what was charged twice
	Undue     int64  `json:"undue_denials"`
	Lost      int64  `json:"lost_durable_tokens"`
	Slowest   int64  `json:"slowest_ns"` // answer or error to a request under way during the fault
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
	for _, first := range r.first {
		f.Recovered = max(f.Recovered, first-r.to)
	}
	for _, j := range r.log.Check() {
		if r.steps() { // one more burst for each step, and what refills while a call is under way
			limit := loosest[j.Limiter]
			j.Over.Tokens = max(0, j.Over.Tokens-2*limit.Burst-int64(vague/limit.Token()))
		}
		f.Over += j.Over.Tokens + j.Twice
		f.Undue += j.NotDueTotal
		if o := j.Over; o.Tokens > 0 {
			findings = append(findings, fmt.Sprintf("%s %s: %d too many, %d granted in %v", j.Limiter, o.Bucket, o.Tokens, o.Granted, o.To.Sub(o.From)))
		}
		if j.Twice > 0 {
			findings = append(findings, fmt.Sprintf("%s: %d tokens charged twice for one ID", j.Limiter, j.Twice))
		}
		if j.NotDueTotal > 0 {
			d := j.NotDue[0]
			findings = append(findings, fmt.Sprintf("%s %s: %d denials undue, %d tokens were there for %v", j.Limiter, d.Bucket, j.NotDueTotal, d.Free, d.Late))
		}
	}
	if lost := r.counted - owed; lost > 0 {
		f.Lost += lost
		findings = append(findings, "counter: it has forgotten what it had granted")
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
