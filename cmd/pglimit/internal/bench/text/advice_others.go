package text

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/compare"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// bound says who kept the write-up's bound.
func (a advice) bound() string {
	var said []string
	for _, l := range a.Base {
		if l.Scenario.AtMost == 0 {
			continue
		}
		var kept, not []string
		for _, name := range a.Names {
			s, ran := l.Of(name)
			switch {
			case !ran:
			case s.Faults.TooMany > 0:
				not = append(not, name+" (by "+Count(s.Faults.TooMany)+")")
			default:
				kept = append(kept, name)
			}
		}
		text := "At most " + Plural(l.Scenario.AtMost, "token") + ": "
		switch {
		case len(not) == 0 && len(kept) > 1:
			text += "all kept to it"
		case len(not) == 0:
			text += kept[0] + " kept to it"
		case len(kept) == 0:
			text += "none kept to it"
		default:
			text += "kept by " + strings.Join(kept, ", ") + "; not by " + strings.Join(not, ", ")
		}
		said = append(said, text)
	}
	return strings.Join(said, ". ")
}

// equals says who granted nearly all that was possible under a load with a bound. Such a load
// is light: it shows who is right, not who is fast.
func (a advice) equals(l compare.Load) string {
	var equal []string
	granted, possible := int64(math.MaxInt64), int64(0)
	for _, name := range a.Candidates {
		s, ran := l.Of(name)
		if !ran || slices.ContainsFunc(s.Runs, func(r result.Run) bool { return float64(r.Granted) < nearlyAll*float64(r.Possible) }) {
			continue
		}
		equal = append(equal, name)
		for _, run := range s.Runs {
			granted, possible = min(granted, run.Granted), max(possible, run.Possible)
		}
	}
	if len(equal) == 0 || possible == 0 {
		return ""
	}
	text := fmt.Sprintf("%s granted %s of the %s that a perfect limiter grants, without a failure",
		strings.Join(equal, ", "), Count(granted), Count(possible))
	if len(equal) > 1 {
		text += ": at this load any of them will do, and the suite (pglimit bench) tells them apart"
	}
	return text
}

// nearlyAll of what was possible: an arrival or two may meet a server that is busy.
const nearlyAll = 0.95

// stages says what they make of the recommended strategy.
func (a advice) stages() string {
	least, most := math.Inf(1), math.Inf(-1)
	var on result.Parameters
	slowest := ""
	for _, l := range a.Staged {
		base := a.Without(l)
		with, ran := l.Of(a.take)
		without, had := base.Of(a.take)
		factor := with.Pace.Median / without.Pace.Median
		if !ran || !had || math.IsNaN(factor) || math.IsInf(factor, 0) {
			continue
		}
		if factor < least {
			least, slowest = factor, base.Scenario.Title
		}
		most = max(most, factor)
		on = l.Scenario.Parameters
	}
	if math.IsInf(least, 1) {
		return ""
	}
	factors := Factor(least) + " to " + Factor(most)
	if Factor(least) == Factor(most) {
		factors = Factor(most)
	}
	text := fmt.Sprintf("%s made %s %s as fast", named(on), a.take, factors)
	switch {
	case most < 1:
		return text + "; these loads are faster without"
	case least < 1/worthSaying:
		text += "; slower on " + slowest
	case on.Leases:
		text += ": worth having"
	default:
		text += ": they are on by default"
	}
	return text + a.ahead()
}

// ahead says where the stages put it ahead of the others.
func (a advice) ahead() string {
	for _, l := range a.StagedGrants() {
		able := l.Among(a.Candidates)
		if len(able) < 2 || able[0].Strategy != a.take || compare.Tie(able[0].Pace, able[1].Pace) {
			continue
		}
		return fmt.Sprintf(". With them it does %s %s on %s, %s times those of %s", Number(able[0].Main.Median), unit(l),
			a.Without(l).Scenario.Title, strings.TrimPrefix(Factor(able[0].Share(able[1])), "×"), able[1].Strategy)
	}
	return ""
}

// named says what the stages do, for a reader who does not know their names.
func named(p result.Parameters) string {
	on := stageNames(p, "combining requests", "remembering denials", "leasing tokens")
	if len(on) == 0 {
		return "The stages"
	}
	last := len(on) - 1
	text := on[last]
	if last > 0 {
		text = strings.Join(on[:last], ", ") + " and " + text
	}
	return capital(text)
}

// others says what spoils each of the others, and where it would make sense.
func (a advice) others() string {
	if a.take == "" {
		return "" // nothing to compare them with
	}
	var said, tied []string
	for _, name := range a.Names {
		if name == a.take || slices.Contains(a.Out, name) && !a.Excused {
			continue
		}
		switch text := a.other(name); text {
		case "":
		case tooClose:
			tied = append(tied, name)
		default:
			said = append(said, name+": "+text)
		}
	}
	if len(tied) > 0 {
		said = append(said, strings.Join(tied, ", ")+": "+tooClose)
	}
	return strings.Join(said, ". ")
}

const tooClose = "no clear difference in speed"

func (a advice) other(name string) string {
	var facts []string
	least, most, tied, ran := math.Inf(1), math.Inf(-1), 0, 0
	var heldBy compare.Load
	held := 0.0
	for _, l := range a.Base {
		s, found := l.Of(name)
		w, both := l.Of(a.take)
		if !found || !both {
			continue
		}
		ran++
		if s.Contended > held {
			held, heldBy = s.Contended, l
		}
		f := s.Share(w)
		least, most = min(least, f), max(most, f)
		switch tie := compare.Tie(s.Pace, w.Pace); {
		case tie:
			tied++
		case f > 1 && !s.OftenContended():
			facts = append(facts, Factor(f)+" on "+l.Scenario.Title)
		}
	}
	if ran == 0 {
		return "did not run under the same loads"
	}
	if held > compare.NotableContention {
		facts = append(facts, fmt.Sprintf("denied %s (%s) because another caller held the row", Share(held), heldBy.Scenario.Title))
	}
	facts = append(facts, slower(least, most, tied, ran)...)
	if compare.Published(name) {
		return strings.Join(facts, ", ") // it is not to be had, so what it costs is nobody's concern
	}
	return strings.Join(append(facts, a.costs(name)...), ", ")
}

// slower by how much, over all loads.
func slower(least, most float64, tied, ran int) []string {
	switch {
	case tied == ran:
		return []string{tooClose}
	case least >= 1:
		return nil
	case tied > 0 || most > 1:
		return []string{"up to " + Share(1-least) + " slower"}
	case Share(1-most) == Share(1-least):
		return []string{Share(1-least) + " slower"}
	}
	low := strings.TrimSuffix(Share(1-most), " %")
	return []string{low + " to " + Share(1-least) + " slower"}
}

// costs of a strategy beyond those of the recommended strategy, where most is granted.
func (a advice) costs(name string) (costs []string) {
	trips, wal := false, false
	for _, l := range a.Base {
		s, found := l.Of(name)
		w, both := l.Of(a.take)
		if !found || !both {
			continue
		}
		if t := s.Figure(result.Run.TripsPerDecision).Median; !trips && t > 1.5*w.Figure(result.Run.TripsPerDecision).Median {
			costs = append(costs, times(t))
			trips = true
		}
		if !wal && l.By() == result.ByGrants && !s.OftenContended() {
			if x, _ := a.extremes(l, s, result.Run.WALPerDecision); x.greatest {
				costs = append(costs, "most WAL ("+Number(x.own)+" B)")
			}
			wal = true
		}
	}
	return costs
}
