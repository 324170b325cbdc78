package bench

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// notes are what a reader of the numbers should know, and would not see from them.
func (r Report) notes() []string {
	var notes []string
	note := func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
	if r.Interrupted {
		note("Interrupted: the last run is shorter than it was to be, or missing.")
	}
	for _, run := range r.Runs {
		if run.Audit.OverTokens > 0 {
			note("%s granted more than its limit allows: %s.", run.Strategy, run.Audit.Worst)
		}
	}
	if r.adapted() {
		note("Strategies that keep a burst of 1 only ran with the same rate and a burst of 1.")
	}
	for _, run := range r.Runs {
		notes = append(notes, run.notes(r.Config)...)
	}
	return notes
}

func (r Result) notes(c Config) []string {
	var notes []string
	note := func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
	a := r.Audit
	if c.AuditDecisions > 0 && !a.Complete {
		note("%s: the audit covers the first %s decisions (--audit); they are complete, so the verdict on them is.", r.Strategy, count(a.Audited))
	}
	if a.KeysWithLostAnswers > 0 {
		note("%s: an answer was lost that may have been a grant, of %s; later denials there are not judged.", r.Strategy, plural(a.KeysWithLostAnswers, "key"))
	}
	if r.Server.Incomplete {
		note("%s: some connections had not reported their statistics yet: deadlocks, dead tuples and HOT updates may be more.", r.Strategy)
	}
	if n := r.Errors[kindUnserved]; n > 0 {
		note("%s: %s arrivals were not sent until %v after the end. They are in the latencies with the time they had waited.", r.Strategy, count(n), drainTime)
	}
	if n := r.Errors[kindUnanswered]; n > 0 {
		note("%s: %s requests had no answer %v after the end and were given up. They are in the latencies with the time they had taken.", r.Strategy, count(n), drainTime)
	}
	for _, kind := range slices.Sorted(maps.Keys(r.FirstErrors)) {
		note("%s, first error %s: %s", r.Strategy, kind, strings.Join(strings.Fields(r.FirstErrors[kind]), " "))
	}
	return notes
}
