//go:build unix

package prove

import (
	"cmp"
	"encoding/json"
	"math"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/pglimit/ratelimit/strategies/audit"
)

// round is a fault, the time before and after it, and keys of its own: so what it leaves unknown excuses nothing else.
type round struct {
	*Fault
	number   int
	from, to int64 // of the fault
	back     int64 // how long it took until Postgres granted something to every process again
	lines    []line
}

// vague is the longest call whose grant counts where the machine's clock is the measure.
const vague = 200 * time.Millisecond

func (r *round) steps() bool { return r.Name == clockStepped }

// Fault is what all rounds with a fault showed.
type Fault struct {
	Name      string `json:"name"`
	Does      string `json:"does"`
	Times     int    `json:"times"` // 0: there was no time, or it cannot be injected here, as Does says then
	During    int64  `json:"decisions_during"`
	After     int64  `json:"decisions_after"`
	Unknown   int64  `json:"unknown"`
	Over      int64  `json:"over_tokens"` // with what was charged twice
	Undue     int64  `json:"undue_denials"`
	Lost      int64  `json:"lost_durable_tokens"`
	Slowest   int64  `json:"slowest_ns"` // answer or error to a request under way during the fault
	Recovered int64  `json:"recovered_ns"`
}

// judgeRound adds what the round showed. owed is what the counter owes in the database. The decisions are written to
// Config.Out, but those of a clock that stepped: their times are no measure.
func (p *prover) judgeRound(r *round, result *Result, owed int64) (err error) {
	r.Times++
	r.Recovered = max(r.Recovered, r.back)
	var log audit.Log
	var counts []porcupine.Operation
	counted := int64(0)
	for _, l := range r.lines {
		waits := l.Limiter == "wait" // who waits is told to give up, and that is no slow answer and no unknown one
		if !waits && l.Began < r.to && l.Ended > r.from {
			r.Slowest = max(r.Slowest, l.Ended-l.Began)
		}
		if l.Unknown && !waits {
			r.Unknown++
		} else if l.Error == "" && !l.Unknown {
			result.Decisions++
			if l.Ended > r.to {
				r.After++
			} else if l.Ended >= r.from {
				r.During++
			}
		}
		if l.Limiter == "counter" && l.Tokens > 0 {
			counted += l.Granted
			counts = append(counts, result.Porcupine.operation(l))
		}
		if r.steps() { // grants are judged by the machine's clock, if it tells when they were made, and denials are not
			if l.Granted == 0 || l.ID != "" || l.Limiter == "calendar" || l.Ended-l.Began > int64(vague) {
				continue
			}
			l.At, l.Delay, l.Tokens = audit.Time(l.Ended), 0, l.Granted
			l.Limit.Burst = 3*l.Limit.Burst + int64(vague/l.Limit.Token()) // one more for each step, and what refills while it was asked
		} else if p.Out != nil {
			err = json.NewEncoder(p.Out).Encode(l)
		}
		if err = cmp.Or(err, log.Add(l.Record)); err != nil {
			return err
		}
	}
	for _, j := range log.Check() {
		r.Over += j.Over.Tokens + j.Twice
		r.Undue += j.NotDueTotal
		for _, what := range j.Worst() {
			p.find(r, j.Limiter+": "+what)
		}
	}
	if lost := counted - owed; lost > 0 {
		r.Lost += lost
		p.find(r, "counter: it has forgotten what it had granted")
	}
	if len(counts) > 0 && !result.Porcupine.check(counts) {
		p.find(r, "counter: porcupine finds no order for its requests")
	}
	return nil
}

// mostPermits is how many places were held at once: the most were when one of the spans began.
func mostPermits(spans []line) (most int64) {
	for _, s := range spans {
		held := int64(0)
		for _, other := range spans {
			if other.Began <= s.Began && s.Began < other.Ended {
				held += other.Permit
			}
		}
		most = max(most, held)
	}
	return most
}

// operation is a request for the counter, as porcupine has it. One without an answer may have been decided at any time
// later, or never: it ends behind all others, where it changes nothing.
func (p *Porcupine) operation(l line) porcupine.Operation {
	p.Operations++
	op := porcupine.Operation{ClientId: l.Worker, Output: l, Call: l.Began, Return: l.Ended}
	if l.Unknown {
		p.Unknown++
		op.Return = math.MaxInt64
	}
	return op
}

// counter is a bucket that does not refill in the time of a run: what is left only falls. A grant needs that so many
// are left, and a denial that they are not. The order that porcupine looks for must fit the times of questions and
// answers.
var counter = porcupine.Model{
	Init: func() any { return counterLimit.Burst },
	Step: func(state, _, output any) (bool, any) {
		left, l := state.(int64), output.(line)
		there := l.Tokens <= left
		if there && (l.Granted > 0 || l.Unknown) {
			return true, left - l.Tokens
		}
		return l.Unknown || !there && l.Granted == 0, left
	},
}

// Porcupine is what the checker that others wrote said of the counters' histories.
type Porcupine struct {
	Histories  int `json:"histories"`
	Operations int `json:"operations"`
	Unknown    int `json:"unknown"`
	Undecided  int `json:"undecided"` // took too long
	Refused    int `json:"refused"`
}

// check a history, and say whether it may be one of a counter.
func (p *Porcupine) check(history []porcupine.Operation) bool {
	p.Histories++
	result := porcupine.CheckOperationsTimeout(counter, history, 5*time.Second)
	switch result {
	case porcupine.Unknown:
		p.Undecided++
	case porcupine.Illegal:
		p.Refused++
	}
	return result != porcupine.Illegal
}
