package advice

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/format"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/rank"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// choose the strategy that is the least behind the fastest, as the geometric mean over
// the loads that several ran under: so one load that it is bad at is not outweighed by a
// win elsewhere. With the stages on, as a service has them, loads count in which Postgres
// decides all the same: where denials come from memory, all strategies are as fast.
// Empty: there is none to choose.
func (e *evidence) choose() (winner string) {
	pool := e.patient(e.candidates)
	if len(pool) > 0 {
		winner = pool[0]
	}
	most, best := 0, 0.0
	for _, name := range pool {
		ran, sum := 0, 0.0
		for _, l := range append(slices.Clone(e.base), e.stagedGrants()...) {
			s, found := l.of(name)
			if !found || len(l.among(pool)) < 2 {
				continue
			}
			ran++
			pace := share(s, l.among(pool)[0])
			if !(pace > 1e-6) { // not known: in an open loop it has nothing to show
				pace = 1e-6
			}
			sum += math.Log(pace)
		}
		if ran > most || ran == most && ran > 0 && sum > best {
			winner, most, best = name, ran, sum
		}
	}
	return winner
}

// patient strategies seldom deny because another caller holds the row. All of them, if
// none is.
func (e *evidence) patient(names []string) []string {
	some := slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		return slices.ContainsFunc(e.base, func(l load) bool {
			s, ran := l.of(name)
			return ran && s.OftenContended()
		})
	})
	if len(some) == 0 {
		return names
	}
	return some
}

// share of the other's pace: 0.9 is 10 % slower.
func share(s, other rank.Standing) float64 {
	if other.Pace.Median == s.Pace.Median {
		return 1
	}
	return s.Pace.Median / other.Pace.Median
}

// choice says what to take in general, and what speaks for it.
func (e *evidence) choice(winner string) string {
	switch {
	case len(e.names) == 1:
		return e.only(winner)
	case len(e.base) == 1:
		l := e.base[0]
		s, _ := l.of(winner)
		return fmt.Sprintf("For this load take %s: %s; %s. Other loads were not measured", winner, e.figure(l, s, e.reasons(l, s)), e.verdicts(winner))
	case len(e.candidates) == 1:
		return fmt.Sprintf("That leaves %s; %s", winner, e.verdicts(winner))
	}
	leads, tied, ran := 0, 0, 0
	var behind []string
	for _, l := range e.base {
		s, found := l.of(winner)
		first := l.among(e.candidates)
		if !found || len(first) < 2 {
			continue
		}
		ran++
		rival := first[0]
		if rival.Strategy == winner {
			rival = first[1]
		}
		switch {
		case rank.Tie(s.Pace, rival.Pace):
			tied++
		case first[0].Strategy == winner:
			leads++
		default:
			behind = append(behind, format.Share(1-share(s, rival)))
		}
	}
	if ran == 0 {
		return fmt.Sprintf("No two strategies ran under the same load, so none is known to be faster than %s; %s", winner, e.verdicts(winner))
	}
	text := fmt.Sprintf("Take %s: fastest in %d of %d loads", winner, leads, ran)
	switch {
	case tied == ran:
		text = fmt.Sprintf("Take %s: none is faster beyond doubt in any of %d loads", winner, ran)
		if e.ahead(winner) != "" {
			text += ", and it is ahead when requests are combined"
		}
	case tied > 0:
		text += fmt.Sprintf(", too close to call in %d", tied)
	}
	switch {
	case len(behind) == 1:
		text += ", behind by " + behind[0] + " in the other"
	case len(behind) > 1:
		text += ", behind by " + strings.Join(behind, ", ") + " in the others"
	}
	return text + "; " + e.verdicts(winner)
}

// only one strategy ran.
func (e *evidence) only(name string) string {
	text := "Only " + name + " was run, so there is nothing to compare it with; " + e.verdicts(name)
	if len(e.base) == 1 {
		s, _ := e.base[0].of(name)
		text += ". It did " + e.figure(e.base[0], s, e.reasons(e.base[0], s))
	}
	return text
}

// verdicts of the audits of all its runs, in a few words.
func (e *evidence) verdicts(name string) string {
	var seen []string
	for _, l := range e.all() {
		if s, ran := l.of(name); ran && !slices.Contains(seen, s.Verdict()) {
			seen = append(seen, s.Verdict())
		}
	}
	only := func(verdicts ...string) bool {
		return !slices.ContainsFunc(seen, func(v string) bool { return !slices.Contains(verdicts, v) })
	}
	switch {
	case e.faults(name).Wrong():
		return "not exact"
	case only(result.VerdictExact):
		return "exact"
	case only(result.VerdictExact, result.VerdictSampled):
		return "exact (denials sampled)"
	case only(result.VerdictExact, result.VerdictSampled, result.VerdictNeverOver):
		return "never over its limit"
	case slices.Contains(seen, result.VerdictOff):
		return "not audited"
	}
	return "no fault seen"
}
