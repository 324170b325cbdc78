// Package compare puts two reports beside each other: what a change made better or worse, and what is noise.
package compare

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/answer"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/metric"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// Comparison of two reports.
type Comparison struct {
	Pairs []Pair `json:"pairs"` // in the order of the old report; never empty

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
	Metric  metric.Metric `json:"-"`
	Name    string        `json:"name"` // of the metric
	Old     result.Figure `json:"old"`
	New     result.Figure `json:"new"`
	Ratio   float64       `json:"ratio"`   // of the medians, new to old. 0: not known
	Verdict string        `json:"verdict"` // Better, Worse or Noise. Empty: one of the reports does not have it
}

// What became of a figure.
const (
	Better = "better"
	Worse  = "worse"
	Noise  = "noise" // the two cannot be told apart: see [answer.TooClose]
)

// Reports compares two of them. The error says what to do if they have nothing in common.
func Reports(before, after result.Report) (c Comparison, err error) {
	for _, old := range before.Groups() {
		now, also := after.Group(old.Scenario.Name)
		if also {
			c.Differs = append(c.Differs, differing(old.Scenario.Name+": ", old.Scenario, now.Scenario)...)
		}
		for _, row := range old.Rows {
			if next, also := now.Row(row.Strategy); also {
				c.Pairs = append(c.Pairs, Pair{old.Scenario.Name, old.Scenario.Title, row.Strategy, figures(row, next)})
			}
		}
	}
	if len(c.Pairs) == 0 {
		return c, errors.New("the reports have no strategy under one scenario in common: run both with the same --scenario and --strategies")
	}
	c.Differs = append(c.Differs, only("old", before, after)...)
	c.Differs = append(c.Differs, only("new", after, before)...)
	around := differing("server ", server(before), server(after))
	around = append(around, differing("client ", before.Client, after.Client)...)
	audit := func(r result.Report) map[string]int { return map[string]int{"decisions": r.AuditDecisions} }
	around = append(around, differing("audit ", audit(before), audit(after))...)
	if before.Interrupted || after.Interrupted {
		around = append(around, "one of the runs was interrupted")
	}
	c.Differs = append(around, c.Differs...)
	return c, nil
}

// only in that report are these runs: they are not compared.
func only(which string, r, other result.Report) (list []string) {
	for _, g := range r.Groups() {
		there, _ := other.Group(g.Scenario.Name)
		for _, row := range g.Rows {
			if _, also := there.Row(row.Strategy); !also {
				list = append(list, fmt.Sprintf("%s: %s is only in the %s report", g.Scenario.Name, row.Strategy, which))
			}
		}
	}
	return list
}

// server without its name, which differs for each throwaway.
func server(r result.Report) map[string]string {
	all := map[string]string{"version": r.Server.Version}
	maps.Copy(all, r.Server.Settings)
	return all
}

// differing fields of two values, by the names that they have in the JSON: a field that is added there is compared
// here.
func differing[T any](what string, old, now T) (list []string) {
	a, b := fields(old), fields(now)
	names := maps.Clone(a)
	maps.Copy(names, b)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if x, y := value(a[name]), value(b[name]); x != y {
			list = append(list, fmt.Sprintf("%s%s %s, now %s", what, strings.ReplaceAll(name, "_", " "), x, y))
		}
	}
	return list
}

func fields(value any) map[string]json.RawMessage {
	all := map[string]json.RawMessage{}
	if text, err := json.Marshal(value); err == nil { // it was read from JSON
		_ = json.Unmarshal(text, &all)
	}
	return all
}

func value(text json.RawMessage) string {
	if trimmed := strings.Trim(string(text), `"`); trimmed != "" {
		return trimmed
	}
	return "none"
}

// figures of two rows, of which at least one has them.
func figures(old, now result.Row) (list []Figure) {
	for _, m := range metric.Main {
		f := Figure{Metric: m, Name: m.Name, Old: known(old, m), New: known(now, m)}
		switch a, b := f.Old, f.New; {
		case a.High == 0 && b.High == 0:
			continue // nothing was denied, or nothing known
		case a.Runs == 0 || b.Runs == 0:
		case answer.TooClose(a, b):
			f.Verdict = Noise
		case b.Median > a.Median == (m.Unit == metric.Rate):
			f.Verdict = Better
		default:
			f.Verdict = Worse
		}
		if f.Old.Median != 0 && f.New.Runs > 0 {
			f.Ratio = f.New.Median / f.Old.Median
		}
		list = append(list, f)
	}
	return list
}

// known is the figure without those of runs that have none: JSON could not write them.
func known(row result.Row, m metric.Metric) result.Figure {
	f := row.Figure(func(run result.Run) float64 {
		if figure := m.Of(run); figure != metric.None {
			return figure
		}
		return math.NaN()
	})
	if f.Runs == 0 {
		return result.Figure{}
	}
	return f
}
