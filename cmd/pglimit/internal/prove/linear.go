//go:build unix

package prove

import (
	"fmt"
	"math"
	"os"
	"time"

	"github.com/anishathalye/porcupine"
)

// The counter is a bucket that does not refill in the time of a run: what is left only falls. A grant of n needs n, and a
// denial needs that fewer are left. Whatever order porcupine finds must fit the times of the questions and answers. A
// request without an answer may have been decided at any time later, or never: it ends behind all others, where it
// changes nothing.

type count struct {
	tokens  int64
	granted bool
	unknown bool
}

func operation(l line) porcupine.Operation {
	c := count{tokens: l.Tokens, granted: l.Granted > 0, unknown: l.Unknown}
	op := porcupine.Operation{ClientId: l.worker, Input: c.tokens, Output: c, Call: l.Began, Return: l.Ended}
	if c.unknown {
		op.Return = math.MaxInt64
	}
	return op
}

var counterModel = porcupine.Model{
	Init: func() any { return counterLimit.Burst },
	Step: func(state, _, output any) (bool, any) {
		left, c := state.(int64), output.(count)
		there := c.tokens <= left
		if there && (c.granted || c.unknown) {
			return true, left - c.tokens
		}
		return c.unknown || !there && !c.granted, left
	},
	DescribeOperation: func(_, output any) string {
		c := output.(count)
		switch {
		case c.unknown:
			return fmt.Sprintf("%d ?", c.tokens)
		case c.granted:
			return fmt.Sprintf("%d granted", c.tokens)
		}
		return fmt.Sprintf("%d denied", c.tokens)
	},
	DescribeState: func(state any) string { return fmt.Sprint(state, " left") },
}

// Porcupine is what the checker of others said of the counters' histories.
type Porcupine struct {
	Histories  int      `json:"histories"`
	Operations int      `json:"operations"`
	Unknown    int      `json:"unknown"`
	Undecided  int      `json:"undecided"` // took too long
	Refused    int      `json:"refused"`
	Pictures   []string `json:"pictures,omitempty"`
}

// check a history. If it is none of a counter, its picture is kept.
func (p *Porcupine) check(history []porcupine.Operation, picture string, patience time.Duration) error {
	if len(history) == 0 {
		return nil
	}
	p.Histories++
	p.Operations += len(history)
	for i := range history {
		if history[i].Output.(count).unknown {
			p.Unknown++
		}
	}
	switch result, info := porcupine.CheckOperationsVerbose(counterModel, history, patience); result {
	case porcupine.Unknown:
		p.Undecided++
	case porcupine.Illegal:
		p.Refused++
		file, err := os.Create(picture)
		if err != nil {
			return err
		}
		defer file.Close() //nolint:errcheck // Visualize has said what is wrong
		p.Pictures = append(p.Pictures, picture)
		return porcupine.Visualize(counterModel, info, file)
	}
	return nil
}
