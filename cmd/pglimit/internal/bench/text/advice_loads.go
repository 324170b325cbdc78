package text

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/compare"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// worthSaying is the factor above which two figures are called different.
const worthSaying = 1.05

// many says what to take for many users who mostly keep to their limit, and why.
func (a advice) many() string {
	if len(a.Base) == 1 {
		return "" // that is the choice
	}
	for _, l := range a.Base {
		if l.Scenario.Parameters.Keys > 1 && l.By() == result.ByGrants {
			if best, found := a.best(l); found {
				return "Many users, mostly under their limit: " + a.name(l, best) + ", " + a.figure(l, best, a.reasons(l, best))
			}
		}
	}
	return ""
}

// hot says what to take for one key that all callers ask for.
func (a advice) hot() string {
	if len(a.Base) == 1 {
		return ""
	}
	var picks []string
	strategy := ""
	for _, by := range []string{result.ByGrants, result.ByDenials} {
		for _, l := range a.Base {
			if l.Scenario.Parameters.Keys > 1 || l.By() != by || l.Scenario.AtMost > 0 {
				continue
			}
			best, found := a.best(l)
			if !found {
				continue
			}
			name := a.name(l, best) + ", "
			if name == strategy {
				name = ""
			} else {
				strategy = name
			}
			picks = append(picks, name+a.figure(l, best, p99Words(l, best)))
			break
		}
	}
	if len(picks) == 0 {
		return ""
	}
	return "One hot key: " + strings.Join(picks, "; ")
}

// best of the candidates under a load: what is recommended in general, if no other is
// clearly faster.
func (a advice) best(l compare.Load) (compare.Standing, bool) {
	able := l.Among(a.Patient(a.Candidates))
	if len(able) == 0 {
		return compare.Standing{}, false
	}
	if s, ran := l.Of(a.take); ran && compare.Tie(s.Pace, able[0].Pace) {
		return s, true
	}
	return able[0], true
}

// name of the best under a load, and of those that cannot be told from it: only what is
// recommended in general goes before them.
func (a advice) name(l compare.Load, best compare.Standing) string {
	if best.Strategy == a.take {
		return a.take
	}
	return strings.Join(append([]string{best.Strategy}, a.tied(l, best)...), " or ")
}

// tied with the strategy under the load.
func (a advice) tied(l compare.Load, s compare.Standing) (names []string) {
	for _, o := range l.Among(a.Candidates) {
		if o.Strategy != s.Strategy && compare.Tie(s.Pace, o.Pace) {
			names = append(names, o.Strategy)
		}
	}
	return names
}

// figure of a strategy under a load, beside the next; and what else speaks for it.
func (a advice) figure(l compare.Load, s compare.Standing, reasons []string) string {
	text := Number(s.Main.Median) + " " + unit(l)
	if compare.Open(l.Scenario) {
		text = "p99 " + Micros(1e6/s.Pace.Median)
	}
	if len(a.Names) > 1 {
		text += " (" + a.beside(l, s) + ")"
	}
	if len(reasons) > 0 {
		text += ", " + strings.Join(reasons, ", ")
	}
	return text
}

// beside says how the strategy stands to the next, and to those that cannot be told from
// it.
func (a advice) beside(l compare.Load, s compare.Standing) string {
	others := slices.DeleteFunc(l.Among(a.Candidates), func(o compare.Standing) bool { return o.Strategy == s.Strategy })
	if len(l.Standings) == 1 {
		return "no other was run"
	}
	if len(others) == 0 {
		return "no other without faults"
	}
	switch next, tied := others[0], a.tied(l, s); {
	case len(tied) > 0:
		return "too close to call with " + strings.Join(tied, ", ")
	case next.OftenContended() && s.Share(next) < 1:
		return fmt.Sprintf("%s %s, but %s contended", next.Strategy, Factor(next.Share(s)), Share(next.Contended))
	default:
		if compare.Open(l.Scenario) {
			return next.Strategy + " " + Micros(1e6/next.Pace.Median)
		}
		return Factor(s.Share(next)) + " of " + next.Strategy
	}
}

// reasons are what its figures have over those of the others.
func (a advice) reasons(l compare.Load, s compare.Standing) (reasons []string) {
	reasons = p99Words(l, s)
	trips, worst := a.extremes(l, s, result.Run.TripsPerDecision)
	if trips.least {
		reasons = append(reasons, fmt.Sprintf("%s (%s: %s)", times(trips.own), worst, Small(trips.most)))
	}
	if wal, _ := a.extremes(l, s, result.Run.WALPerDecision); wal.least {
		reasons = append(reasons, "least WAL ("+Number(wal.own)+" B)")
	}
	return reasons
}

// p99Words say the p99 of what the load is about. There is none where that never happened.
func p99Words(l compare.Load, s compare.Standing) []string {
	f := s.Figure(func(run result.Run) float64 { return compare.P99(l.Scenario, run) })
	if f.Runs == 0 || compare.Open(l.Scenario) {
		return nil // or has been said as the figure
	}
	return []string{"p99 " + Micros(f.Median)}
}

func times(trips float64) string {
	if trips == 1 {
		return "1 round trip"
	}
	return Small(trips) + " round trips"
}

// unit of the load's main figure.
func unit(l compare.Load) string { return l.By() + "/s" }

// extreme is a figure of a strategy beside those of the other candidates.
type extreme struct {
	own, most float64
	least     bool // nobody has less, and somebody notably more
	greatest  bool // nobody has more, and somebody notably less
}

// extremes returns that, and who has the most.
func (a advice) extremes(l compare.Load, s compare.Standing, of func(result.Run) float64) (x extreme, most string) {
	x.own = s.Figure(of).Median
	least := x.own
	x.most = x.own
	for _, o := range l.Among(a.Candidates) {
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
