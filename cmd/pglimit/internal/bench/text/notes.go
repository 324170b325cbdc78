package text

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/compare"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// notableErrors is the share of requests above which errors are pointed out.
const notableErrors = 0.01

// drained is how long after the end of a run requests that were under way may be answered.
const drained = "5s after the end"

// detailNotes say what a reader of the numbers should know, and would not see from them.
// Counts are of all rounds together.
func detailNotes(g result.Group) (notes []string) {
	note := func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
	for _, row := range g.Rows {
		for _, run := range row.Runs {
			if run.Over() {
				note("%s granted more than its limit allows: %s.", row.Strategy, run.Audit.Worst)
				break
			}
		}
	}
	if anyRun(g, func(run result.Run) bool { return run.Adapted }) {
		note("Strategies that keep a burst of 1 only ran with the same rate and a burst of 1.")
	}
	if without := withoutLeases(g); len(without) > 0 {
		note("Without leases, which they do not have: %s.", strings.Join(without, ", "))
	}
	for _, row := range g.Rows {
		notes = append(notes, troubleNotes(row)...)
		notes = append(notes, auditNotes(row)...)
		notes = append(notes, serverNotes(g, row)...)
		notes = append(notes, errorNotes(g, row)...)
	}
	return notes
}

// withoutLeases names the strategies that ran without leases although leases were wanted.
func withoutLeases(g result.Group) (names []string) {
	for _, row := range g.Rows {
		if g.Scenario.Parameters.Leases && !row.Runs[0].Stages.Leases {
			names = append(names, row.Strategy)
		}
	}
	return names
}

// troubleNotes say how much of the trouble on purpose there was.
func troubleNotes(row result.Row) (notes []string) {
	for _, run := range row.Runs {
		t := run.Trouble
		if t == nil {
			continue
		}
		if t.Restarted {
			notes = append(notes, fmt.Sprintf("%s: the server was away for %s.", row.Strategy, Seconds(t.AwaySeconds)))
		}
		if t.LockedKeys > 0 {
			notes = append(notes, fmt.Sprintf("%s: of %s at a time somebody else held the rows that there were, %s in all.",
				row.Strategy, Plural(int64(t.LockedKeys), "key"), Count(t.RowLocks)))
		}
	}
	return notes
}

// auditNotes of all rounds of a strategy.
func auditNotes(row result.Row) (notes []string) {
	note := func(format string, args ...any) {
		notes = append(notes, row.Strategy+": "+fmt.Sprintf(format, args...))
	}
	var kept, sampled float64
	lost, incomplete := 0, false
	var unjudged *result.Run
	for i, run := range row.Runs {
		a := run.Audit
		if a == nil {
			continue
		}
		if !a.Complete {
			incomplete, kept = true, float64(a.AuditedGrants)
		}
		sampled = max(sampled, a.DenialSampling)
		lost += a.KeysWithLostAnswers
		if run.Verdict() == result.VerdictNeverOver {
			unjudged = &row.Runs[i]
		}
	}
	if sampled > 1 {
		note("every grant was checked, but only 1 denial of %s: up to %s wrong denials may have been missed, more would most likely have shown.",
			Number(sampled), Count(missed(sampled)))
	}
	if incomplete {
		note("there was no more room to keep every grant: the audit ends at that time, after %s; --audit keeps more.", whole(kept))
	}
	if lost > 0 {
		note("an answer was lost that may have been a grant, of %s; later denials there are not judged.", Plural(int64(lost), "key"))
	}
	switch leases := row.Runs[0].Stages.Leases; {
	case leases && row.Runs[0].Audit != nil:
		note("grants only are audited: what is set aside in leases is denied to others although nobody has got it yet.")
	case unjudged != nil:
		note("%s, so whether it denies only what is due is not known.", whyNoDenialJudged(*unjudged))
	}
	return notes
}

// missed is how many wrong denials a sample of 1 in so many overlooks altogether with a
// chance of 5 %.
func missed(sampling float64) int64 {
	return int64(math.Log(0.05) / math.Log(1-1/sampling))
}

func whyNoDenialJudged(run result.Run) string {
	switch run.Denied {
	case 0:
		return "nothing was denied (see --limit)"
	case run.Contended:
		return "all that was denied was contended (see --keys and --limit)"
	}
	return "its denials do not say when they were made"
}

// serverNotes say what the server has left unsaid.
func serverNotes(g result.Group, row result.Row) (notes []string) {
	var silent, incomplete, unlogged bool
	for _, run := range row.Runs {
		silent = silent || run.Deadlocks == nil
		incomplete = incomplete || run.Deadlocks != nil && !run.StatisticsComplete
		unlogged = unlogged || run.Storage != nil && *run.Storage == "unlogged"
	}
	if silent {
		notes = append(notes, row.Strategy+": the server could not be asked what it counted (\"?\").")
	}
	if incomplete {
		notes = append(notes, row.Strategy+": some connections had not reported their statistics yet: deadlocks, dead tuples and HOT updates may be more.")
	}
	if unlogged && g.Scenario.Parameters.Durability == "durable" {
		notes = append(notes, row.Strategy+": its table is unlogged, so that durable grants wait for no disk, and do not survive a crash.")
	}
	return notes
}

// errorNotes explain errors that are of the load, and show the first of each kind.
func errorNotes(g result.Group, row result.Row) (notes []string) {
	note := func(format string, args ...any) {
		notes = append(notes, row.Strategy+": "+fmt.Sprintf(format, args...))
	}
	if share := compare.FaultsOf(g.Scenario, row).FailedShare(); share > notableErrors {
		note("%.1f %% of the requests ended in an error. They are not among the decisions, "+
			"but what they cost the server is in its numbers per decision.", 100*share)
	}
	counts, first := map[string]int64{}, map[string]string{}
	for _, run := range row.Runs {
		for kind, n := range run.Errors {
			counts[kind] += n
		}
		for kind, text := range run.FirstErrors {
			if first[kind] == "" {
				first[kind] = text
			}
		}
	}
	if n := counts["unserved"]; n > 0 {
		note("%s arrivals were never sent, up to %s. They are in the latencies with the time they had waited.", Count(n), drained)
	}
	if n := counts["unanswered"]; n > 0 {
		note("%s requests had no answer %s and were given up. They are in the latencies with the time they had taken.", Count(n), drained)
	}
	if n := counts["overloaded"]; n > 0 {
		note("%s requests were turned away because as many as --max-waiting says waited already.", Count(n))
	}
	if n := counts["timeout"]; n > 0 {
		note("%s requests were given up after %s (--timeout). They are in the latencies with that time.", Count(n), Seconds(g.Scenario.Parameters.TimeoutSeconds))
	}
	for _, kind := range slices.Sorted(maps.Keys(first)) {
		notes = append(notes, fmt.Sprintf("%s, first error %s: %s", row.Strategy, kind, strings.Join(strings.Fields(first[kind]), " ")))
	}
	return notes
}
