package text

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// legend explains the head of the blocks, without which a new user cannot read them.
const legend = "* fastest; grants, denials: per second; ms: p50/p99; trips, WAL: per decision"

// head says what was run on what, in four lines.
func head(r result.Report, groups []result.Group) []string {
	lines := []string{
		server(r.Server),
		setUp(r, groups),
		rounds(r, groups),
		legend,
	}
	for i := range lines {
		lines[i] = clip(lines[i], Width)
	}
	return lines
}

// server says which one. A throwaway's source names its version already.
func server(s result.Server) string {
	if strings.HasPrefix(s.Source, "PostgreSQL ") {
		return s.Source
	}
	number, _, _ := strings.Cut(s.Version, " ") // without the packager's name for it
	return "PostgreSQL " + cmp.Or(number, Unknown) + ": " + s.Source
}

// setUp is what all scenarios have in common.
func setUp(r result.Report, groups []result.Group) string {
	p := groups[0].Scenario.Parameters
	same := func(of func(result.Parameters) any) bool {
		return !slices.ContainsFunc(groups, func(g result.Group) bool { return of(g.Scenario.Parameters) != of(p) })
	}
	var parts []string
	if same(func(p result.Parameters) any { return p.Loop }) {
		parts = append(parts, p.Loop+" loop")
	}
	if same(poolsOf) {
		parts = append(parts, pools(p))
	} else {
		parts = append(parts, severalInstances(groups))
	}
	if same(func(p result.Parameters) any { return p.Durability }) {
		parts = append(parts, p.Durability+" durability")
	}
	if r.Client.CPUs > 0 {
		parts = append(parts, Plural(int64(r.Client.CPUs), "CPU"))
	}
	const bare = "one call per decision"
	if same(func(p result.Parameters) any { return stagesOn(p) }) && !stagesOn(p) && len(strings.Join(parts, ", ")+", "+bare) <= Width {
		parts = append(parts, bare)
	}
	return strings.Join(parts, ", ")
}

func stagesOn(p result.Parameters) bool { return p.Combining || p.Memory || p.Leases }

func poolsOf(p result.Parameters) any { return [2]int{p.Instances, p.Conns} }

// severalInstances says how many there are, from the fewest to the most.
func severalInstances(groups []result.Group) string {
	fewest, most := groups[0].Scenario.Parameters.Instances, 0
	for _, g := range groups {
		fewest, most = min(fewest, g.Scenario.Parameters.Instances), max(most, g.Scenario.Parameters.Instances)
	}
	if fewest == most {
		return Plural(int64(most), "instance")
	}
	return fmt.Sprintf("%d to %s", fewest, Plural(int64(most), "instance"))
}

func pools(p result.Parameters) string {
	return Plural(int64(p.Instances), "instance") + " of " + Plural(int64(p.Conns), "connection")
}

func rounds(r result.Report, groups []result.Group) string {
	shortest, longest, warmup := groups[0].Scenario.Parameters.DurationSeconds, 0.0, 0.0
	for _, g := range groups {
		p := g.Scenario.Parameters
		shortest, longest, warmup = min(shortest, p.DurationSeconds), max(longest, p.DurationSeconds), max(warmup, p.WarmupSeconds)
	}
	each := Seconds(longest)
	if shortest != longest {
		each = Seconds(shortest) + " to " + each
	}
	text := "1 round"
	if n := roundsOf(r); n > 1 {
		text = fmt.Sprintf("medians of %d rounds in turn", n)
	}
	return fmt.Sprintf("%s, %s each after %s of warm-up", text, each, Seconds(warmup))
}

func roundsOf(r result.Report) (n int) {
	for _, run := range r.Runs {
		n = max(n, run.Round)
	}
	return n
}

// load of a scenario in a few words: 64 callers, 10,000 keys of 1000000/1s.
func load(p result.Parameters) string {
	var parts []string
	switch {
	case len(p.Phases) > 0:
		highest := 0.0
		for _, phase := range p.Phases {
			highest = max(highest, phase.From, phase.To)
		}
		parts = append(parts, fmt.Sprintf("%s, up to %s/s", Plural(int64(len(p.Phases)), "phase"), Number(highest)))
	case p.RPS > 0:
		parts = append(parts, Number(p.RPS)+" arrivals/s")
	default:
		parts = append(parts, Plural(int64(p.Callers), "caller"))
	}
	keys := Plural(int64(p.Keys), "key")
	if p.Keys > 1 && p.Distribution != "" && p.Distribution != uniform {
		keys += " (" + p.Distribution + ")"
	}
	parts = append(parts, keys+" of "+p.Limit)
	if p.Cost > 1 || len(p.Costs) > 0 {
		parts = append(parts, cost(p))
	}
	return strings.Join(append(parts, trouble(p)...), ", ")
}

const uniform = "uniform" // every key is as likely, which goes without saying

func cost(p result.Parameters) string {
	if len(p.Costs) == 0 {
		return "cost " + Count(p.Cost)
	}
	var parts []string
	for _, c := range p.Costs {
		parts = append(parts, fmt.Sprintf("%s (%s)", Count(c.Tokens), Share(c.Share)))
	}
	return "cost " + strings.Join(parts, ", ")
}

// trouble that was made on purpose.
func trouble(p result.Parameters) (parts []string) {
	if p.AddedLatencySeconds > 0 {
		parts = append(parts, Seconds(p.AddedLatencySeconds)+" added to each round trip")
	}
	if p.LockedShare > 0 {
		parts = append(parts, Percent(p.LockedShare)+" of the keys held locked")
	}
	if p.RestartAfterSeconds > 0 {
		parts = append(parts, "server restarted after "+Seconds(p.RestartAfterSeconds))
	}
	return parts
}
