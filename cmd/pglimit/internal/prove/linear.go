//go:build unix

package prove

import (
	"fmt"
	"math"
	"os"
	"time"

	"github.com/anishathalye/porcupine"
)

// operation is a request for the counter, as porcupine has it. One without an answer may have been decided at any time
// later, or never: it ends behind all others, where it changes nothing.
func operation(l line) porcupine.Operation {
	op := porcupine.Operation{ClientId: l.Worker, Output: l, Call: l.Began, Return: l.Ended}
	if l.Unknown {
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
	DescribeOperation: func(_, output any) string {
		l := output.(line)
		if l.Unknown {
			return fmt.Sprintf("%d asked, no answer", l.Tokens)
		}
		return fmt.Sprintf("%d asked, %d granted", l.Tokens, l.Granted)
	},
	DescribeState: func(state any) string { return fmt.Sprint(state, " left") },
}

// Porcupine is what the checker that others wrote said of the counters' histories.
type Porcupine struct {
	Histories  int      `json:"histories"`
	Operations int      `json:"operations"`
	Unknown    int      `json:"unknown"`
	Undecided  int      `json:"undecided"` // took too long
	Refused    int      `json:"refused"`
	Pictures   []string `json:"pictures,omitempty"`
}

// check a history. If it is none of a counter, its picture is kept.
func (p *Porcupine) check(history []porcupine.Operation, picture string) (ok bool, err error) {
	if len(history) == 0 {
		return true, nil
	}
	p.Histories++
	p.Operations += len(history)
	for i := range history {
		if history[i].Return == math.MaxInt64 {
			p.Unknown++
		}
	}
	result, info := porcupine.CheckOperationsVerbose(counter, history, 5*time.Second)
	if result == porcupine.Unknown {
		p.Undecided++
	}
	if result != porcupine.Illegal {
		return true, nil
	}
	p.Refused++
	p.Pictures = append(p.Pictures, picture)
	file, err := os.Create(picture)
	if err != nil {
		return false, err
	}
	defer file.Close() //nolint:errcheck // Visualize has said what is wrong
	return false, porcupine.Visualize(counter, info, file)
}
