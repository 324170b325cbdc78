package report

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/chart"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// load is a row of the table that says what each scenario was.
type load struct {
	Title, Loop, Requests, Keys, Limit, Time, Durability, Stages, Trouble string
}

func loads(scenarios []result.Scenario) []load {
	var rows []load
	for _, s := range scenarios {
		p := s.Parameters
		l := load{
			Title: heading(s), Loop: p.Loop, Keys: keys(p), Limit: limit(p), Time: duration(p.DurationSeconds),
			Durability: p.Durability, Stages: stages(p), Trouble: trouble(p),
		}
		l.Requests = fmt.Sprintf("%s, %s, %s", plural(p.Callers, "caller"), plural(p.Instances, "instance"), plural(p.Conns, "connection"))
		if p.Loop == "open" {
			l.Requests = arrivals(p) + "; at most " + l.Requests
		}
		if p.WarmupSeconds > 0 {
			l.Time += ", after " + duration(p.WarmupSeconds) + " of warm-up"
		}
		rows = append(rows, l)
	}
	return rows
}

// words say the load in one or two sentences. The loop is explained where it is not the same everywhere.
func words(p result.Parameters, explain bool) string {
	instances := plural(p.Instances, "instance")
	asks := ""
	if p.Limit != "" {
		asks = fmt.Sprintf(" The limit of %s: %s.", keys(p), limit(p))
	}
	if on := stages(p); on != "none" {
		asks += " The stages that are on: " + on + "."
	}
	if bad := trouble(p); bad != "none" {
		asks += " Trouble on purpose: " + bad + "."
	}
	switch {
	case p.Loop == "open" && explain:
		return fmt.Sprintf("Open loop: %s: %s, to %s.", loops["open"], arrivals(p), instances) + asks
	case p.Loop == "open":
		return fmt.Sprintf("Requests arrive at %s, to %s.", arrivals(p), instances) + asks
	case explain:
		return fmt.Sprintf("Closed loop: %s on %s, %s.", plural(p.Callers, "caller"), instances, loops["closed"]) + asks
	}
	return fmt.Sprintf("%s on %s.", plural(p.Callers, "caller"), instances) + asks
}

// loops, and what they are.
var loops = map[string]string{
	"open":   "requests arrive on a schedule, whether or not earlier ones have been answered",
	"closed": "each asking again when it has its answer",
}

// arrivals of an open loop.
func arrivals(p result.Parameters) string {
	text := rate(p.RPS)
	if len(p.Phases) > 0 {
		var parts []string
		for _, phase := range p.Phases {
			parts = append(parts, phaseRate(phase)+" for "+duration(phase.Seconds))
		}
		text = strings.Join(parts, ", then ")
	}
	if p.Arrivals != "" {
		text += " (" + p.Arrivals + ")"
	}
	return text
}

func phaseRate(phase result.Phase) string {
	if phase.From != phase.To {
		return chart.Number.Text(phase.From) + " to " + rate(phase.To)
	}
	return rate(phase.From)
}

func rate(perSecond float64) string { return chart.Number.Text(perSecond) + "/s" }

func keys(p result.Parameters) string {
	text := plural(p.Keys, "key")
	if p.WithRows {
		text += ", each with a row"
	}
	if p.Distribution == "zipf" {
		return text + ", zipf " + strconv.FormatFloat(p.Exponent, 'g', 3, 64)
	}
	return text
}

func limit(p result.Parameters) string {
	if len(p.Costs) > 1 {
		var parts []string
		for _, cost := range p.Costs {
			parts = append(parts, fmt.Sprintf("%d for %s of the requests", cost.Tokens, chart.Percent.Text(cost.Share*100)))
		}
		return p.Limit + ", tokens asked for: " + strings.Join(parts, ", ")
	}
	if p.Cost > 1 {
		return fmt.Sprintf("%s, %d tokens a request", p.Limit, p.Cost)
	}
	return p.Limit
}

func stages(p result.Parameters) string {
	var on []string
	for _, stage := range []struct {
		name string
		on   bool
	}{{"combining", p.Combining}, {"memory", p.Memory}, {"leases", p.Leases}} {
		if stage.on {
			on = append(on, stage.name)
		}
	}
	if len(on) == 0 {
		return "none"
	}
	return strings.Join(on, ", ")
}

func trouble(p result.Parameters) string {
	var made []string
	if p.AddedLatencySeconds > 0 {
		made = append(made, "each round trip takes "+duration(p.AddedLatencySeconds)+" more")
	}
	if p.LockedShare > 0 {
		made = append(made, chart.Percent.Text(p.LockedShare*100)+" of the keys are held locked")
	}
	if p.RestartAfterSeconds > 0 {
		made = append(made, "the server restarts after "+duration(p.RestartAfterSeconds))
	}
	if len(made) == 0 {
		return "none"
	}
	return strings.Join(made, ", ")
}

func duration(seconds float64) string { return chart.Seconds.Text(seconds) }
