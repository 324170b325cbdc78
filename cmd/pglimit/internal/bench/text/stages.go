package text

import (
	"cmp"
	"math"
	"strings"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// stagesText says which stages were wanted, and which of their settings are not the
// library's default: "combining (8 lanes), memory of denials, no leases".
func stagesText(p result.Parameters) string {
	setting := func(set bool, text string) string {
		if !set {
			return ""
		}
		return text
	}
	return strings.Join([]string{
		stageText(p.Combining, "combining",
			setting(p.Lanes > 0, Plural(int64(p.Lanes), "lane")),
			setting(p.MaxWaiting > 0, "at most "+Count(int64(p.MaxWaiting))+" waiting")),
		stageText(p.Memory, "memory of denials",
			setting(p.DenialTTLSeconds > 0, Seconds(p.DenialTTLSeconds)),
			setting(p.DenialKeys > 0, Plural(int64(p.DenialKeys), "key"))),
		stageText(p.Leases, "leases", setting(p.LeaseTTLSeconds > 0, Seconds(p.LeaseTTLSeconds)), ""),
	}, ", ")
}

// stageText names a stage and up to two settings, each if it was set.
func stageText(on bool, name, first, second string) string {
	switch {
	case !on:
		return "no " + name
	case first != "" && second != "":
		return name + " (" + first + ", " + second + ")"
	case first+second != "":
		return name + " (" + cmp.Or(first, second) + ")"
	}
	return name
}

// stageFigures say what each stage did. Round trips are calls of the strategy, which may
// be several on the wire. They leave out the lines of a stage that no run
// had.
func stageFigures(g result.Group) (lines []figure) {
	stage := func(name string, there func(result.Stages) bool, write func(float64) string, of func(result.Stages) float64) {
		if !anyRun(g, func(run result.Run) bool { return there(run.Stages) }) {
			return
		}
		f := median(name, write, func(run result.Run) float64 {
			if !there(run.Stages) {
				return math.NaN()
			}
			return of(run.Stages)
		})
		lines = append(lines, figure{name, func(row result.Row) string {
			if row.Figure(func(run result.Run) float64 { return presence(there(run.Stages)) }).Runs == 0 {
				return None
			}
			return f.cell(row)
		}})
	}
	combining := func(s result.Stages) bool { return s.Combining }
	leases := func(s result.Stages) bool { return s.Leases }
	leavers := func(s result.Stages) bool { return s.PassedOnTokens+s.GivenBackTokens+s.LostTokens > 0 }

	lines = append(lines,
		median("wire round trips/decision", Small, result.Run.TripsPerDecision),
		median("round trips/decision", Small, func(run result.Run) float64 { return run.Stages.RoundTripsPerDecision }),
	)
	stage("from memory", func(s result.Stages) bool { return s.Memory }, Percent, func(s result.Stages) float64 { return s.RememberedRatio })
	stage("from leases", leases, Percent, func(s result.Stages) float64 { return s.LeasedRatio })
	stage("trips for leases", leases, whole, func(s result.Stages) float64 { return float64(s.LeaseTrips) })
	stage("leased tokens unspent", leases, Percent, func(s result.Stages) float64 {
		return float64(s.UnspentTokens) / float64(max(1, s.LeasedTokens))
	})
	stage("callers/round trip", combining, Number, func(s result.Stages) float64 { return s.CallersPerRoundTrip })
	stage("requests/round trip", combining, Number, func(s result.Stages) float64 { return s.RequestsPerRoundTrip })
	stage("tokens of leavers passed on", leavers, whole, func(s result.Stages) float64 { return float64(s.PassedOnTokens) })
	stage("given back", leavers, whole, func(s result.Stages) float64 { return float64(s.GivenBackTokens) })
	stage("lost", leavers, whole, func(s result.Stages) float64 { return float64(s.LostTokens) })
	return lines
}

// presence is a figure where there is one to be had.
func presence(there bool) float64 {
	if there {
		return 1
	}
	return math.NaN()
}
