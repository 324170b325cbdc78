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

// worthSaying is the factor above which two figures are called different.
const worthSaying = 1.05

// many says what to take for many users who mostly keep to their limit, and why.
func (e *evidence) many(winner string) string {
	if len(e.base) == 1 {
		return "" // that is the choice
	}
	for _, l := range e.base {
		if l.scenario.Parameters.Keys > 1 && l.by() == result.ByGrants {
			if best, found := e.best(l, winner); found {
				return "Many users, mostly under their limit: " + best.Strategy + ", " + e.figure(l, best, e.reasons(l, best))
			}
		}
	}
	return ""
}

// hot says what to take for one key that all callers ask for.
func (e *evidence) hot(winner string) string {
	if len(e.base) == 1 {
		return ""
	}
	var picks []string
	strategy := ""
	for _, by := range []string{result.ByGrants, result.ByDenials} {
		for _, l := range e.base {
			if l.scenario.Parameters.Keys > 1 || l.by() != by || l.scenario.AtMost > 0 {
				continue
			}
			best, found := e.best(l, winner)
			if !found {
				continue
			}
			name := best.Strategy + ", "
			if name == strategy {
				name = ""
			} else {
				strategy = name
			}
			picks = append(picks, name+e.figure(l, best, p99(l, best)))
			break
		}
	}
	if len(picks) == 0 {
		return ""
	}
	return "One hot key: " + strings.Join(picks, "; ")
}

// best of the candidates under a load: the winner, if none is faster beyond doubt.
func (e *evidence) best(l load, winner string) (rank.Standing, bool) {
	able := l.among(e.patient(e.candidates))
	if len(able) == 0 {
		return rank.Standing{}, false
	}
	if s, ran := l.of(winner); ran && rank.Tie(s.Pace, able[0].Pace) {
		return s, true
	}
	return able[0], true
}

// figure of a strategy under a load, beside the next; and what else speaks for it.
func (e *evidence) figure(l load, s rank.Standing, reasons []string) string {
	text := format.Number(s.Main.Median) + " " + l.unit()
	if rank.Open(l.scenario) {
		text = "p99 " + format.Micros(1e6/s.Pace.Median)
	}
	if len(e.names) > 1 {
		text += " (" + e.beside(l, s) + ")"
	}
	if len(reasons) > 0 {
		text += ", " + strings.Join(reasons, ", ")
	}
	return text
}

// beside says how the strategy stands to the next, and to those that cannot be told from
// it.
func (e *evidence) beside(l load, s rank.Standing) string {
	others := slices.DeleteFunc(l.among(e.candidates), func(o rank.Standing) bool { return o.Strategy == s.Strategy })
	if len(l.standings) == 1 {
		return "no other was run"
	}
	if len(others) == 0 {
		return "no other without faults"
	}
	var tied []string
	for _, o := range others {
		if rank.Tie(s.Pace, o.Pace) {
			tied = append(tied, o.Strategy)
		}
	}
	switch next := others[0]; {
	case len(tied) > 0:
		return "too close to call with " + strings.Join(tied, ", ")
	case next.OftenContended() && share(s, next) < 1:
		return fmt.Sprintf("%s %s, but %s contended", next.Strategy, format.Factor(share(next, s)), format.Share(next.Contended))
	default:
		if rank.Open(l.scenario) {
			return next.Strategy + " " + format.Micros(1e6/next.Pace.Median)
		}
		return format.Factor(share(s, next)) + " of " + next.Strategy
	}
}

// reasons are what its figures have over those of the others.
func (e *evidence) reasons(l load, s rank.Standing) (reasons []string) {
	reasons = p99(l, s)
	trips, worst := e.extremes(l, s, result.Run.TripsPerDecision)
	if trips.least {
		reasons = append(reasons, fmt.Sprintf("%s (%s: %s)", times(trips.own), worst, format.Small(trips.most)))
	}
	if wal, _ := e.extremes(l, s, walOf); wal.least {
		reasons = append(reasons, "least WAL ("+format.Number(wal.own)+" B)")
	}
	return reasons
}

// p99 of what the load is about. There is none where that never happened.
func p99(l load, s rank.Standing) []string {
	f := s.Figure(func(run result.Run) float64 { return rank.P99(l.scenario, run) })
	if f.Runs == 0 || rank.Open(l.scenario) {
		return nil // or has been said as the figure
	}
	return []string{"p99 " + format.Micros(f.Median)}
}

func times(trips float64) string {
	if trips == 1 {
		return "1 round trip"
	}
	return format.Small(trips) + " round trips"
}

func walOf(run result.Run) float64 {
	if run.WALBytesPerDecision == nil {
		return math.NaN()
	}
	return *run.WALBytesPerDecision
}

// extreme is a figure of a strategy beside those of the other candidates.
type extreme struct {
	own, most float64
	least     bool // nobody has less, and somebody notably more
	greatest  bool // nobody has more, and somebody notably less
}

// extremes returns that, and who has the most.
func (e *evidence) extremes(l load, s rank.Standing, of func(result.Run) float64) (x extreme, most string) {
	x.own = s.Figure(of).Median
	least := x.own
	x.most = x.own
	for _, o := range l.among(e.candidates) {
		f := o.Figure(of).Median
		if f < least {
			least = f
		}
		if f > x.most {
			x.most, most = f, o.Strategy
		}
	}
	x.least = x.own <= least && x.most > worthSaying*x.own
	x.greatest = x.own >= x.most && x.own > worthSaying*least
	return x, most
}
