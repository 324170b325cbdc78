// Package advice says in words which strategy to take, why, and how sure that is. It
// knows strategies by their figures alone; which is the fastest, what is a tie and what a
// fault says package rank.
//
//	advice.go    what is said, in which order
//	evidence.go  the figures that it rests on
//	choice.go    the strategy for all loads
//	loads.go     the strategy for a kind of load
//	others.go    what spoils the others, and what the stages change
//	certainty.go how sure it is
package advice

import (
	"strings"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// Of the report: a paragraph each, the most important first. There is none if nothing
// was measured.
func Of(r result.Report) []string {
	e := newEvidence(r)
	if len(e.base) == 0 {
		return nil
	}
	paragraphs := []string{e.ruledOut()}
	if l := e.base[0]; len(e.base) == 1 && l.scenario.AtMost > 0 && len(e.names) > 1 {
		return sentences(append(paragraphs, e.bound(), e.equals(l)))
	}
	if winner := e.choose(); winner != "" {
		paragraphs = append(paragraphs, e.choice(winner), e.many(winner), e.hot(winner), e.bound(), e.stages(winner), e.others(winner))
	} else {
		paragraphs = append(paragraphs, e.bound())
	}
	return sentences(append(paragraphs, e.certainty()))
}

// sentences leaves out what is empty.
func sentences(paragraphs []string) (said []string) {
	for _, p := range paragraphs {
		if p != "" {
			said = append(said, strings.TrimSuffix(p, ".")+".")
		}
	}
	return said
}
