package text

import (
	"fmt"
	"strings"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/compare"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// gains says how many times as much each strategy does with stages as without, by
// what the scenario compares. folded says that faults have a line, however many they are.
func gains(base, staged []result.Group, folded bool, o Options) []string {
	if len(staged) == 0 {
		return nil
	}
	names := strategies(staged)
	top := []string{"with " + strings.Join(stageNames(staged[0].Scenario.Parameters, "combining", "memory", "leases"), ", ")}
	if width(top[0]) > Width/3 {
		top[0] = "with all stages"
	}
	for _, name := range names {
		top = append(top, short(name))
	}
	rows := [][]string{top}
	for _, g := range staged {
		without, _ := compare.Base(base, g)
		cells := []string{without.Scenario.Title}
		if folded { // room for the marks of faults
			cells[0] = clip(cells[0], Width/3-len(" !"))
		}
		for _, name := range names {
			cells = append(cells, gain(without, g, name))
		}
		rows = append(rows, cells)
	}
	lines := paged(rows)
	lines[0] = o.title(lines[0])
	lines = append(lines, "×2: twice as fast with them as without; ×0.5: half as fast.")
	faults := faulty(staged)
	if folded && len(faults) > 1 {
		faults = []string{fmt.Sprintf("!: %s", Plural(int64(len(faults)), "fault"))}
	}
	for _, fault := range faults {
		for _, line := range wrap(fault, Width, 2) {
			lines = append(lines, o.bad(line))
		}
	}
	return lines
}

// gain of a strategy by the stages: ×310. A fault is marked.
func gain(without, with result.Group, strategy string) string {
	before, had := without.Row(strategy)
	after, has := with.Row(strategy)
	if !had || !has {
		return None
	}
	cell := Factor(compare.Pace(with.Scenario, after).Median / compare.Pace(without.Scenario, before).Median)
	if compare.FaultsOf(with.Scenario, after).Any() {
		cell += " !"
	}
	return cell
}

// stageNames of the stages that are on, each by the name that is given for it.
func stageNames(p result.Parameters, combining, memory, leases string) (on []string) {
	for _, stage := range []struct {
		on   bool
		name string
	}{{p.Combining, combining}, {p.Memory, memory}, {p.Leases, leases}} {
		if stage.on {
			on = append(on, stage.name)
		}
	}
	return on
}
