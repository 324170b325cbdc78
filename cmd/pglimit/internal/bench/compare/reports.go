package compare

import (
	"errors"
	"fmt"
	"math"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// Comparison of two reports.
type Comparison struct {
	Pairs []Pair `json:"pairs"` // in the order of the old report; never empty

	// Unmatched runs are in one of the reports only.
	OnlyOld []string `json:"only_old,omitempty"` // "token_bucket, many-keys-granted"
	OnlyNew []string `json:"only_new,omitempty"`

	// Differs lists what was not the same, so that figures may differ because of that.
	Differs []string `json:"differs,omitempty"` // "many-keys-granted: keys 20, now 100"
}

// Pair is one strategy under one scenario, in both reports.
type Pair struct {
	Scenario string   `json:"scenario"`
	Title    string   `json:"title"`
	Strategy string   `json:"strategy"`
	Figures  []Figure `json:"figures"`
}

// Figure of a pair. Figures that neither report has are left out.
type Figure struct {
	Name       string  `json:"name"` // decisions/s
	Unit       string  `json:"unit"` // Rate, Latency, Bytes or Trips
	MoreBetter bool    `json:"more_better"`
	Old        Summary `json:"old"`
	New        Summary `json:"new"`

	// Ratio of the medians, new to old. 0: not known.
	Ratio float64 `json:"ratio"`

	// Noise: the two cannot be told apart, see [Noise].
	Noise bool `json:"noise"`
}

// Units of figures.
const (
	Rate    = "per second"
	Latency = "us"
	Bytes   = "bytes"
	Trips   = "trips"
)

// Summary of a figure's repetitions. Runs 0: it is not known.
type Summary struct {
	Median float64 `json:"median"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
	Runs   int     `json:"runs"`
}

// Figure as package result has it.
func (s Summary) Figure() result.Figure {
	if s.Runs == 0 {
		return result.Figure{Median: math.NaN(), Low: math.NaN(), High: math.NaN()}
	}
	return result.Figure{Median: s.Median, Low: s.Low, High: s.High, Runs: s.Runs}
}

// summary has no NaN, which JSON could not write.
func summary(f result.Figure) Summary {
	if f.Runs == 0 {
		return Summary{}
	}
	return Summary{Median: f.Median, Low: f.Low, High: f.High, Runs: f.Runs}
}

// Reports compares two of them. The error says what to do if they have nothing in common.
func Reports(before, after result.Report) (Comparison, error) {
	var c Comparison
	if len(before.Runs) == 0 || len(after.Runs) == 0 {
		which := "the old"
		if len(before.Runs) > 0 {
			which = "the new"
		}
		return c, fmt.Errorf("%s report has no runs: compare what \"pglimit bench --output json\" has printed", which)
	}
	for _, old := range before.Groups() {
		now, found := after.Group(old.Scenario.Name)
		matched := false
		for _, row := range old.Rows {
			next, also := now.Row(row.Strategy)
			if !found || !also {
				c.OnlyOld = append(c.OnlyOld, row.Strategy+", "+old.Scenario.Name)
				continue
			}
			matched = true
			c.Pairs = append(c.Pairs, Pair{old.Scenario.Name, old.Scenario.Title, row.Strategy, figures(row, next)})
		}
		if matched {
			c.Differs = append(c.Differs, differing(old.Scenario, now.Scenario)...)
		}
	}
	for _, now := range after.Groups() {
		old, found := before.Group(now.Scenario.Name)
		for _, row := range now.Rows {
			if _, also := old.Row(row.Strategy); !found || !also {
				c.OnlyNew = append(c.OnlyNew, row.Strategy+", "+now.Scenario.Name)
			}
		}
	}
	if len(c.Pairs) == 0 {
		return c, nothingInCommon(c)
	}
	c.Differs = append(surroundings(before, after), c.Differs...)
	return c, nil
}

func nothingInCommon(c Comparison) error {
	if len(c.OnlyOld) == 0 || len(c.OnlyNew) == 0 {
		return errors.New("the reports have no scenario: they are of an earlier pglimit, run the bench again")
	}
	return fmt.Errorf("the reports have no strategy under one scenario in common: the old one begins with %s, the new one with %s; "+
		"run both with the same --scenario and --strategies", c.OnlyOld[0], c.OnlyNew[0])
}

// measured is what is compared of a run.
var measured = []struct {
	name, unit string
	moreBetter bool
	of         func(result.Run) float64
}{
	{"decisions/s", Rate, true, func(run result.Run) float64 { return run.DecisionsPerSecond }},
	{"grants/s", Rate, true, func(run result.Run) float64 { return run.GrantsPerSecond }},
	{"denials/s", Rate, true, func(run result.Run) float64 { return run.DenialsPerSecond }},
	{"grant p50", Latency, false, func(run result.Run) float64 { return run.GrantLatency.Known(run.GrantLatency.P50) }},
	{"grant p99", Latency, false, func(run result.Run) float64 { return run.GrantLatency.Known(run.GrantLatency.P99) }},
	{"denial p50", Latency, false, func(run result.Run) float64 { return run.DenialLatency.Known(run.DenialLatency.P50) }},
	{"denial p99", Latency, false, func(run result.Run) float64 { return run.DenialLatency.Known(run.DenialLatency.P99) }},
	{"WAL/decision", Bytes, false, result.Run.WALPerDecision},
	{"trips/decision", Trips, false, result.Run.TripsPerDecision},
}

func figures(old, now result.Row) (list []Figure) {
	for _, m := range measured {
		a, b := old.Figure(m.of), now.Figure(m.of)
		if (a.Runs == 0 || a.High == 0) && (b.Runs == 0 || b.High == 0) {
			continue // nothing was denied, or nothing known
		}
		f := Figure{Name: m.name, Unit: m.unit, MoreBetter: m.moreBetter, Old: summary(a), New: summary(b)}
		if a.Runs > 0 && b.Runs > 0 {
			f.Noise = Noise(a, b)
			if a.Median != 0 {
				f.Ratio = b.Median / a.Median
			}
		}
		list = append(list, f)
	}
	return list
}
