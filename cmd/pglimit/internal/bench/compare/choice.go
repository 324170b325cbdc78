package compare

import (
	"math"
	"slices"
)

// Default is the strategy to take if there is no clear winner: it takes any limit, in one round trip, and decides many
// keys in one call.
const Default = "token_bucket"

// Choice of a strategy for all loads.
type Choice struct {
	// Strategy that the figures favour. Empty: there is no clear winner.
	Strategy string

	// ByStages: it is no faster than the others in Between without stages, and it is with
	// them.
	ByStages bool

	// Between are the strategies without a clear winner, if Strategy is empty or ByStages is set.
	Between []string
}

// Choose chooses a strategy by two counts that a reader can check in the tables: in how many loads it is the fastest,
// and by how much it is behind in the others. What is too close to call counts for neither. A strategy is chosen if no
// other is better in one of the two, and if it is the fastest somewhere or behind nowhere.
func (e *Evidence) Choose() Choice {
	pool := e.Patient(e.Candidates)
	if len(pool) <= 1 {
		return Choice{Strategy: only(pool)}
	}
	between := e.unbeaten(e.Base, pool)
	record := e.Record(between[0])
	if len(between) == 1 && (record.Leads > 0 || len(record.Behind) == 0) && record.Ran > 0 {
		return Choice{Strategy: between[0]}
	}
	if record.Leads == 0 && len(record.Behind) == 0 {
		if staged := e.unbeaten(e.StagedGrants(), between); len(staged) == 1 && e.record(e.StagedGrants(), staged[0]).Leads > 0 {
			return Choice{Strategy: staged[0], ByStages: true, Between: between}
		}
	}
	return Choice{Between: between}
}

// only name of at most one.
func only(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return names[0]
}

// unbeaten returns the strategies that no other beats. Another beats one if it is the fastest in as many loads, is as
// little behind, and is better in one of the two. A strategy that ran under fewer loads than another is left out.
func (e *Evidence) unbeaten(loads []Load, names []string) []string {
	records, most := map[string]Record{}, 0
	for _, name := range names {
		records[name] = e.record(loads, name)
		most = max(most, records[name].Ran)
	}
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		r := records[name]
		return r.Ran < most || slices.ContainsFunc(names, func(other string) bool {
			o := records[other]
			return o.Ran == most && o.Leads >= r.Leads && o.lost <= r.lost && (o.Leads > r.Leads || o.lost < r.lost)
		})
	})
}

// Record of a strategy over several loads, beside the other candidates.
type Record struct {
	Ran    int       // loads under which another candidate ran too
	Leads  int       // loads in which it is the clearly fastest
	Tied   int       // loads in which it is too close to the fastest to call
	Behind []float64 // of the others: by how much it is slower than the fastest, as a share

	lost float64 // all of Behind, as a sum of logarithms, so that one large loss is not made up for by a few small ones
}

// Record of the strategy over the loads without stages.
func (e *Evidence) Record(name string) Record { return e.record(e.Base, name) }

func (e *Evidence) record(loads []Load, name string) (r Record) {
	for _, l := range loads {
		s, found := l.Of(name)
		rivals := l.Among(e.Candidates)
		if !found || len(rivals) < 2 {
			continue
		}
		r.Ran++
		i := slices.IndexFunc(rivals, func(o Standing) bool {
			return o.Strategy != name && (s.OftenContended() || !o.OftenContended()) // a denial without looking is no feat
		})
		switch {
		case i < 0:
			r.Leads++
		case Tie(s.Pace, rivals[i].Pace) || !s.Known() && !rivals[i].Known():
			r.Tied++
		case !s.Known() || s.Pace.Median < rivals[i].Pace.Median:
			share := s.Share(rivals[i])
			r.Behind = append(r.Behind, 1-share)
			r.lost -= math.Log(max(share, 1e-6)) // 0: it has nothing to show
		default:
			r.Leads++
		}
	}
	return r
}

// Known says whether there is anything to compare the strategy with.
func (s Standing) Known() bool { return s.Pace.Runs > 0 }

// Share of the other's pace: 0.9 is 10 % slower. It is 0 where the own is not known.
func (s Standing) Share(other Standing) float64 {
	switch {
	case other.Pace.Median == s.Pace.Median:
		return 1
	case !s.Known():
		return 0
	}
	return s.Pace.Median / other.Pace.Median
}
