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

// bound says who kept the write-up's bound.
func (e *evidence) bound() string {
	var said []string
	for _, l := range e.base {
		if l.scenario.AtMost == 0 {
			continue
		}
		var kept, not []string
		for _, name := range e.names {
			s, ran := l.of(name)
			switch {
			case !ran:
			case s.Faults.TooMany > 0:
				not = append(not, name+" (by "+format.Count(s.Faults.TooMany)+")")
			default:
				kept = append(kept, name)
			}
		}
		text := "At most " + format.Plural(l.scenario.AtMost, "token") + ": "
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
func (e *evidence) equals(l load) string {
	var equal []string
	granted, possible := int64(math.MaxInt64), int64(0)
	for _, name := range e.candidates {
		s, ran := l.of(name)
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
		strings.Join(equal, ", "), format.Count(granted), format.Count(possible))
	if len(equal) > 1 {
		text += ": at this load any of them will do, and the suite (pglimit bench) tells them apart"
	}
	return text
}

// nearlyAll of what was possible: an arrival or two may meet a server that is busy.
const nearlyAll = 0.95

// stages says what they make of the winner.
func (e *evidence) stages(winner string) string {
	least, most := math.Inf(1), math.Inf(-1)
	var on result.Parameters
	slowest := ""
	for _, l := range e.staged {
		i := slices.IndexFunc(e.base, func(b load) bool { return b.scenario.Name == l.scenario.StagesOf })
		with, ran := l.of(winner)
		without, had := e.base[i].of(winner)
		factor := with.Pace.Median / without.Pace.Median
		if !ran || !had || math.IsNaN(factor) || math.IsInf(factor, 0) {
			continue
		}
		if factor < least {
			least, slowest = factor, e.base[i].scenario.Title
		}
		most = max(most, factor)
		on = l.scenario.Parameters
	}
	if math.IsInf(least, 1) {
		return ""
	}
	factors := format.Factor(least) + " to " + format.Factor(most)
	if format.Factor(least) == format.Factor(most) {
		factors = format.Factor(most)
	}
	text := fmt.Sprintf("%s made %s %s as fast", named(on), winner, factors)
	switch {
	case most < 1:
		return text + "; these loads are better off without"
	case least < 1/worthSaying:
		text += "; slower on " + slowest
	case on.Leases:
		text += ": worth having"
	default:
		text += ": they are on by default"
	}
	return text + e.ahead(winner)
}

// ahead says where the stages put the winner ahead of the others.
func (e *evidence) ahead(winner string) string {
	for _, l := range e.stagedGrants() {
		able := l.among(e.candidates)
		if len(able) < 2 || able[0].Strategy != winner || rank.Tie(able[0].Pace, able[1].Pace) {
			continue
		}
		i := slices.IndexFunc(e.base, func(b load) bool { return b.scenario.Name == l.scenario.StagesOf })
		return fmt.Sprintf(". With them it does %s %s on %s, %s times those of %s", format.Number(able[0].Main.Median), l.unit(),
			e.base[i].scenario.Title, strings.TrimPrefix(format.Factor(share(able[0], able[1])), "×"), able[1].Strategy)
	}
	return ""
}

// named says what the stages do, for a reader who does not know their names.
func named(p result.Parameters) string {
	var on []string
	for _, stage := range []struct {
		on   bool
		name string
	}{{p.Combining, "combining requests"}, {p.Memory, "remembering denials"}, {p.Leases, "leasing tokens"}} {
		if stage.on {
			on = append(on, stage.name)
		}
	}
	if len(on) == 0 {
		return "The stages"
	}
	last := len(on) - 1
	text := on[last]
	if last > 0 {
		text = strings.Join(on[:last], ", ") + " and " + text
	}
	return strings.ToUpper(text[:1]) + text[1:]
}

// others says what spoils each of the others, and where it would make sense.
func (e *evidence) others(winner string) string {
	var said, tied []string
	for _, name := range e.names {
		if name == winner || slices.Contains(e.out, name) && !e.excused {
			continue
		}
		switch text := e.other(name, winner); text {
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

const tooClose = "as fast, as far as the rounds tell"

func (e *evidence) other(name, winner string) string {
	var facts []string
	least, most, tied, ran := math.Inf(1), math.Inf(-1), 0, 0
	var heldBy load
	held := 0.0
	for _, l := range e.base {
		s, found := l.of(name)
		w, both := l.of(winner)
		if !found || !both {
			continue
		}
		ran++
		if s.Contended > held {
			held, heldBy = s.Contended, l
		}
		f := share(s, w)
		least, most = min(least, f), max(most, f)
		switch tie := rank.Tie(s.Pace, w.Pace); {
		case tie:
			tied++
		case f > 1 && !s.OftenContended():
			facts = append(facts, format.Factor(f)+" on "+l.scenario.Title)
		}
	}
	if ran == 0 {
		return "did not run under the same loads"
	}
	if held > rank.NotableContention {
		facts = append(facts, fmt.Sprintf("denied %s (%s) because another caller held the row", format.Share(held), heldBy.scenario.Title))
	}
	facts = append(facts, slower(least, most, tied, ran)...)
	if published(name) {
		return strings.Join(facts, ", ") // it is not to be had, so what it costs is nobody's concern
	}
	return strings.Join(append(facts, e.costs(name, winner)...), ", ")
}

// slower by how much, over all loads.
func slower(least, most float64, tied, ran int) []string {
	switch {
	case tied == ran:
		return []string{tooClose}
	case least >= 1:
		return nil
	case tied > 0 || most > 1:
		return []string{"up to " + format.Share(1-least) + " slower"}
	case format.Share(1-most) == format.Share(1-least):
		return []string{format.Share(1-least) + " slower"}
	}
	low := strings.TrimSuffix(format.Share(1-most), " %")
	return []string{low + " to " + format.Share(1-least) + " slower"}
}

// costs of a strategy beyond those of the winner, where most is granted.
func (e *evidence) costs(name, winner string) (costs []string) {
	trips, wal := false, false
	for _, l := range e.base {
		s, found := l.of(name)
		w, both := l.of(winner)
		if !found || !both {
			continue
		}
		if t := s.Figure(result.Run.TripsPerDecision).Median; !trips && t > 1.5*w.Figure(result.Run.TripsPerDecision).Median {
			costs = append(costs, times(t))
			trips = true
		}
		if !wal && l.by() == result.ByGrants && !s.OftenContended() {
			if x, _ := e.extremes(l, s, walOf); x.greatest {
				costs = append(costs, "most WAL ("+format.Number(x.own)+" B)")
			}
			wal = true
		}
	}
	return costs
}
